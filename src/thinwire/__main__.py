"""``python -m thinwire`` is the command ``thinwire``."""

from thinwire.cli import main

if __name__ == "__main__":
    main()
