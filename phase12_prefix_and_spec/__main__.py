"""`python -m phase12_prefix_and_spec generate "Why is the sky blue?" "Two plus two is"`"""

from shared import cli

if __name__ == "__main__":
    cli.main(phase=12)
