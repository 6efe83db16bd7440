"""`python -m hansa`: the command line."""

from hansa.cli.main import main

if __name__ == "__main__":
    main()
