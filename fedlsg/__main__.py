"""``python -m fedlsg`` is ``fedlsg``."""

from fedlsg.simulations.cli.start import main

if __name__ == "__main__":
    main()
