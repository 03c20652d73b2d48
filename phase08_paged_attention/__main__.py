"""`python -m phase08_paged_attention generate "Why is the sky blue?" "Two plus two is"`"""

from shared import cli

if __name__ == "__main__":
    cli.main(phase=8)
