"""`python -m shared.workshop make-starter 4 --out ../my-phase4`"""

import sys

from shared.cli import exit_code
from shared.workshop.command import parser

if __name__ == "__main__":
    args = parser().parse_args()
    sys.exit(exit_code(lambda: args.run(args)))
