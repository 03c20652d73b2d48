"""`python -m phase01_sequential generate "The capital of France is"`"""

from phase01_sequential.engine import build_engine
from shared import cli

if __name__ == "__main__":
    cli.main(build_engine, phase=1)
