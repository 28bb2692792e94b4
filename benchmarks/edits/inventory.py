"""Counts what a small shop has on its shelves."""

from dataclasses import dataclass


@dataclass
class Item:
    name: str
    price: float
    quantity: int


def total_value(items: list[Item]) -> float:
    """Sum of price times quantity over all items."""
    return sum(item.price * item.quantity for item in items)


def running_low(items: list[Item], limit: int = 3) -> list[str]:
    """Names of items of which at most `limit` are left."""
    return [item.name for item in items if item.quantity <= limit]


def report(items: list[Item]) -> str:
    lines = [f"{item.name}: {item.quantity}" for item in items]
    lines.append(f"total value: {total_value(items):.2f}")
    return "\n".join(lines)
