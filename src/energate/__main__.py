"""`python -m energate`: the command line."""

from energate.cli import main

if __name__ == "__main__":
    main()
