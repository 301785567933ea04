"""``python -m vaneb``."""

from vaneb.cli import main

if __name__ == "__main__":
    main()
