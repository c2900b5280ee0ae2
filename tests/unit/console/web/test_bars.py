"""The charts: each death is in the hour and on the day in which it happened."""

from __future__ import annotations

from celery_superfetch.console.web.bars import Bar, bars, begins

NOW = 1_700_000_000.0  # 2023-11-14 22:13:20 UTC, a Tuesday
HOUR = 3_600_000


def death(ago_ms: int, **told: int) -> dict[str, int]:
    return {"at": int(NOW * 1000) - ago_ms, **told}


def test_a_day_and_a_week() -> None:
    deaths = [death(0, recovered=2), death(HOUR, recovered=3), death(HOUR), death(25 * HOUR)]
    day = bars(deaths, [0] * 23 + [4], NOW, "day")
    assert day[-2:] == [Bar("21:00", 2, 3, 0), Bar("22:00", 1, 2, 4)]
    assert (day[0].label, sum(bar.deaths for bar in day)) == ("23:00", 3)
    assert begins(NOW, "day")[-1] == 1_699_999_200_000
    week = bars([*deaths, death(8 * 24 * HOUR)], [0] * 7, NOW, "week")
    assert [bar.deaths for bar in week] == [0, 0, 0, 0, 0, 1, 3]
    assert week[-1].label == "Tue 14 Nov"
    assert str(day[-2]) == "21:00: 2 workers died, 3 jobs recovered, 0 dead"
