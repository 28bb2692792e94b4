"""Readings of a thermometer, and what they say about the day."""


def to_fahrenheit(celsius: float) -> float:
    return celsius * 9 / 5 + 32


def daily_mean(readings: list[float]) -> float:
    """The mean of a day's readings. ValueError if there are none."""
    if not readings:
        raise ValueError("a day without readings has no mean")
    return sum(readings) / len(readings)


def summary(readings: list[float]) -> dict[str, float]:
    mean = daily_mean(readings)
    return {
        "lowest": min(readings),
        "highest": max(readings),
        "mean": mean,
        "mean_fahrenheit": to_fahrenheit(mean),
    }
