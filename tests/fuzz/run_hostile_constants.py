"""Run operators with hostile constants: each runs, raises a JaxDelegateError, or is a finding.

    python -m tests.fuzz.run_hostile_constants --count=5000
    python -m tests.fuzz.run_hostile_constants --replay=1234

Model number n depends only on n and --seed, so that --replay can repeat it. It runs in the
reference and in a delegate in both quantized modes.
"""

import argparse
import sys
from collections.abc import Sequence

from tests.fuzz.hostile_constants import HostileConstants
from tests.fuzz.run_mutations import Tally, run
from tests.fuzz.workers import Worker

SIDES = ("reference", "delegate", "integer")


def check(numbers: Sequence[int], seed: int, tally: Tally) -> int:
    """Run these models, print the findings, and return their number."""
    workers, count = {side: Worker(side) for side in SIDES}, 0
    try:
        for finding in run(HostileConstants(seed), numbers, workers, 1, tally):
            outcome = finding["outcome"]
            print(f"--- {finding['finding']}, {finding['side']}: {finding['model']}")
            print(f"{finding['damage']}\n{outcome.label}: {outcome.name}: {outcome.text[:400]}")
            print(outcome.stack[-1500:], flush=True)
            count += 1
    finally:
        for worker in workers.values():
            worker.close()
    return count


def main() -> None:
    """Run many models, or replay one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=int, metavar="NUMBER")
    options = parser.parse_args()
    numbers: Sequence[int] = range(options.first, options.first + options.count)
    if options.replay is not None:
        numbers = [options.replay]
    tally = Tally()
    found = check(numbers, options.seed, tally)
    for side, counts in tally.counts.items():
        print(side, dict(counts))
    sys.exit(found > 0)


if __name__ == "__main__":
    main()
