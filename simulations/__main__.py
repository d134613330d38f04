"""``python -m simulations`` is ``fedlsg``."""

from simulations.cli.app import main

if __name__ == "__main__":
    main()
