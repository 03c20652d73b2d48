"""`python -m phase06_block_allocator generate "Why is the sky blue?" "Two plus two is"`"""

from shared import cli

if __name__ == "__main__":
    cli.main(phase=6)
