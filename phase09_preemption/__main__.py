"""`python -m phase09_preemption generate "Why is the sky blue?" "Two plus two is"`"""

from shared import cli

if __name__ == "__main__":
    cli.main(phase=9)
