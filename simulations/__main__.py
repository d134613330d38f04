"""``python -m simulations`` is ``fedlsg``."""

from simulations.cli.start import main

if __name__ == "__main__":
    main()
