"""`python -m jaxdelegate <tool>`."""

import sys

from jaxdelegate.tools.main import main

if __name__ == "__main__":
    sys.exit(main())
