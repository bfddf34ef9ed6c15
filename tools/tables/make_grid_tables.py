"""Writes src/codec/grid_tables.inc, the grid codec's frequency tables (docs/format.md, "Tables").

The numbers in that file are normative; this script records where they come from. Each table gives
16 symbols frequencies that add up to 4096, none of them 0.

Tables 0..159, for the integers q of a block: 8 shapes x 20 levels. A shape is a generalized
Gaussian density exp(-|x/a|^exponent), mixed with a share of zeros (gradients behind inactive
units); the level is the mean magnitude of q after stochastic rounding. Symbol q + 8 stands for
q = -7..7, symbol 0 for everything else (an escape).

Tables 160..175, for what describes the blocks: the share of all-zero blocks (symbol 1) x the spread
of the differences from one block to the next (symbol 9 + difference); symbol 0 is an escape.

    python tools/tables/make_grid_tables.py > src/codec/grid_tables.inc
"""

import math

# (exponent, share of zeros)
SHAPES = ((2, 0), (1.4, 0), (1, 0), (0.7, 0), (2, 0.5), (2, 0.75), (1, 0.5), (1, 0.75))
# Upper ends of the levels: sums of |q| over 128 elements, 30 % apart, up to a mean of 2.
LEVEL_ENDS = (1, 2, 3, 4, 5, 7, 9, 11, 15, 19, 25, 33, 42, 55, 71, 93, 121, 157, 204, 265)
ZERO_SHARES = (0.0, 0.06, 0.5, 0.93)
SPREADS = (0.15, 0.35, 0.6, 0.8)
TOTAL = 4096
REACH = 60  # integers beyond are beyond every table's interest
STEPS = 64  # points per integer of the numerical integral


def rounded_density(scale: float, shape: float) -> list[float]:
    """P(|q|) for |q| = 0..REACH: the density, stochastically rounded to integers."""
    weights = [0.0] * (REACH + 2)
    for i in range(REACH * STEPS):
        x = (i + 0.5) / STEPS
        density = math.exp(-((x / scale) ** shape))
        low = int(x)
        weights[low] += density * (low + 1 - x)
        weights[low + 1] += density * (x - low)
    total = sum(weights)
    return [w / total for w in weights]


def mean_of(probabilities: list[float]) -> float:
    return sum(q * p for q, p in enumerate(probabilities))


def magnitudes_with_mean(mean: float, shape: float) -> list[float]:
    """Sparser than the narrowest density that the integral resolves: mixed with zeros."""
    narrowest = rounded_density(0.05, shape)
    if mean <= mean_of(narrowest):
        share = mean / mean_of(narrowest)
        return [p * share + (1 - share) * (q == 0) for q, p in enumerate(narrowest)]
    low, high = 0.05, 40.0
    for _ in range(40):
        middle = math.sqrt(low * high)
        if mean_of(rounded_density(middle, shape)) < mean:
            low = middle
        else:
            high = middle
    return rounded_density(low, shape)


def integer_table(level: int, exponent: float, zeros: float) -> list[float]:
    begin = LEVEL_ENDS[level - 1] + 1 if level else 1
    mean = math.sqrt(begin * LEVEL_ENDS[level]) / 128
    magnitudes = [p * (1 - zeros) for p in magnitudes_with_mean(mean / (1 - zeros), exponent)]
    magnitudes[0] += zeros
    table = [0.0] * 16
    table[8] = magnitudes[0]
    for q in range(1, 8):
        table[8 + q] = table[8 - q] = magnitudes[q] / 2
    table[0] = sum(magnitudes[8:])
    return table


def block_table(zero_share: float, spread: float) -> list[float]:
    table = [0.0] * 16
    for symbol in range(2, 16):
        table[symbol] = spread ** abs(symbol - 9)
    scale = (1 - zero_share) * 0.998 / sum(table)
    table = [p * scale for p in table]
    table[0] = 0.002 * (1 - zero_share)
    table[1] = zero_share
    return table


def normalize(table: list[float]) -> list[int]:
    """Frequencies of at least 1 that add up to TOTAL; what rounding leaves goes to the largest."""
    frequencies = [max(1, round(p * TOTAL)) for p in table]
    frequencies[frequencies.index(max(frequencies))] += TOTAL - sum(frequencies)
    return frequencies


def print_table(table: list[float]) -> None:
    print("{" + ", ".join(str(f) for f in normalize(table)) + "},")


def main() -> None:
    print("// Made by tools/tables/make_grid_tables.py; part of the format, never changed.")
    for exponent, zeros in SHAPES:
        print(f"// Integers of a block, exponent {exponent}, {zeros:.0%} zeros added")
        for level in range(len(LEVEL_ENDS)):
            print_table(integer_table(level, exponent, zeros))
    for zero_share in ZERO_SHARES:
        print(f"// Differences between blocks, {zero_share:.0%} of them zero")
        for spread in SPREADS:
            print_table(block_table(zero_share, spread))


if __name__ == "__main__":
    main()
