"""A program that adds made results to a store, one transaction each: what several CI jobs do at once.

Arguments: the store, a name for the writer ("" writes what every writer with "" writes), how many results.
"""

from __future__ import annotations

import sys

from trend.made import sample

from glqprof.trend import Store


def main() -> None:
    target, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = Store(target)
    for number in range(count):
        # Three samples a result, as of one file: all of them or none may be in the store.
        store.add([sample(number, 100.0 + number, metric=m, run=f"{writer}-{number}") for m in ("a", "b", "c")])
        if writer == "announced":
            print(number, flush=True)


if __name__ == "__main__":
    main()
