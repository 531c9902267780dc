"""Judges a response: 1 for a right one."""

import re


def judge(response, answer):
    numbers = re.findall(r"\d+", response)
    return float(numbers[-1:] == [answer])
