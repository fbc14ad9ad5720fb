# SPDX-License-Identifier: Apache-2.0
"""What ratios of measurements in pairs or turns say."""


def interval(values):
    """(their median, least, most): the median is between these with 95 % by the signs of those below it.

    Of five values and fewer these are the ends, with 94 % and less."""
    ordered, count = sorted(values), len(values)
    out = max(0, int(count / 2 - 0.98 * count**0.5))  # 1.96 standard deviations of a binomial's half
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return middle, ordered[out], ordered[-1 - out]
