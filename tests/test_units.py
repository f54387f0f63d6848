from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bytes,
    format_seconds,
    parse_budget,
    parse_bytes,
    unit_hint,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("6GB", 6 * GIB),
        ("6GiB", 6 * GIB),
        ("6 g", 6 * GIB),
        ("1.5 MiB", 3 * MIB // 2),
        (".5kb", KIB // 2),
        ("2tb", 2 * TIB),
        ("512", 512),
        ("512B", 512),
        (" 7. MB ", 7 * MIB),
        (4096, 4096),
        (6e9, 6_000_000_000),
    ],
)
def test_reads_bytes(text: str | int | float, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["abc", "", "-3GB", "3XB", "GB", "1e9", "6 G B", "nan", "6GBs"])
def test_what_is_not_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes: give"):
        parse_bytes(text)


@pytest.mark.parametrize("value", [True, 1.5, None, float("nan"), float("inf")])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"is not a (whole )?number of bytes: give"):
        parse_bytes(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "value"),
    [("80%", 800), (" 12.5 %", 125), ("100%", 1000), (0.8, 800), (1.0, 1000), (6e9, 6 * 10**9)],
)
def test_a_budget_may_be_a_share(given: str | float, value: int) -> None:
    assert parse_budget(given, lambda: 1000) == value


def test_bytes_do_not_ask_for_the_memory() -> None:
    assert parse_budget("6GB", lambda: pytest.fail("asked")) == 6 * GIB


@pytest.mark.parametrize(
    "given", ["80 percent", "6 gigs", "0.8", "0%", "101%", "%", 0.0, -0.5, 1.5, float("nan"), True]
)
def test_what_is_no_budget_is_told_of_shares_too(given: str | float) -> None:
    with pytest.raises(ValueError, match=r"example 80%") as error:
        parse_budget(given, lambda: 1000)
    assert "number of bytes" in str(error.value)
    assert "6GB" in str(error.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("6", "6GB"), (" 6000 ", "6000MB"), ("80.", "80GB"), ("1.5", "1.5GB")],
)
def test_a_budget_without_its_unit_is_refused(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"cannot be meant: .* write {meant} if"):
        parse_budget(given, lambda: pytest.fail("asked"))
    assert parse_budget(str(MIB), lambda: pytest.fail("asked")) == MIB
    assert parse_budget("6B", lambda: pytest.fail("asked")) == 6


def test_what_is_too_much_as_mb_may_be_meant_as_bytes() -> None:
    with pytest.raises(ValueError, match=r"has no unit: write 1000000B if bytes .* example 1GB"):
        parse_budget("1000000", lambda: pytest.fail("asked"))
    assert parse_budget("1000000B", lambda: pytest.fail("asked")) == 1_000_000


@pytest.mark.parametrize("given", ["0.5", " .5"])
def test_part_of_a_byte_lacks_its_unit(given: str) -> None:
    with pytest.raises(ValueError, match=r"for example 80%; .* write 0\.5GB if"):
        parse_budget(given, lambda: pytest.fail("asked"))


@pytest.mark.parametrize(
    ("value", "hint"), [(6, "write 6GB if"), (6000, "write 6000MB if"), (10**6, "example 1GB")]
)
def test_what_to_write_for_a_number_without_a_unit(value: int, hint: str) -> None:
    assert hint in unit_hint(value)


@pytest.mark.parametrize("text", ["0", "0GB", 0, -1, "0.0001"])
def test_a_budget_is_positive(text: str | int) -> None:
    with pytest.raises(ValueError, match="positive"):
        parse_bytes(text)


@settings(deadline=None)
@given(st.integers(1, 2**62))
def test_whole_numbers_are_read_exactly(value: int) -> None:
    assert parse_bytes(value) == value
    assert parse_bytes(str(value)) == value


@settings(deadline=None)
@given(st.integers(1, 2**50))
def test_what_is_printed_can_be_read(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == pytest.approx(value, rel=0.006, abs=1)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (int(5.86 * GIB), "5.86 GiB"),
        (-3 * MIB, "-3.00 MiB"),
        (2 * TIB, "2.00 TiB"),
    ],
)
def test_prints_bytes(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5e-6, "5.0 us"),
        (0.0123, "12.3 ms"),
        (1.5, "1.50 s"),
        (61, "1 min 01 s"),
        (59.999, "1 min 00 s"),
        (3720, "1 h 02 min"),
        (-0.5, "-500.0 ms"),
        (float("nan"), "n/a"),
        (9.9999e-4, "1.0 ms"),
        (0.99999, "1.00 s"),
        (float("inf"), "n/a"),
    ],
)
def test_prints_seconds(value: float, text: str) -> None:
    assert format_seconds(value) == text


@settings(deadline=None)
@given(st.floats(0, 1e7))
def test_no_time_prints_more_than_its_unit_holds(value: float) -> None:
    number = format_seconds(value).split()[0]
    assert float(number) < 1000 or value > 3600


@given(st.integers(1, 1 << 50))
def test_rounded_up_text_names_enough(value):
    assert parse_bytes(format_bytes(value, up=True)) >= value
