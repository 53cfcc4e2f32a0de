"""pi's settings and models as a cage gets them."""

from __future__ import annotations

import pytest

from cagewrap.keeper.pihome import NO_KEY, shared_pi_settings


@pytest.mark.parametrize(
    ("key", "kept"),
    [
        ("MY_API_KEY", "MY_API_KEY"),
        ("!op read op://vault/item", NO_KEY),
        ("sk-ant-" + "x" * 30, NO_KEY),
        ("secret", NO_KEY),
        ("AKIAIOSFODNN7EXAMPLE", NO_KEY),
    ],
)
def test_a_key_comes_as_the_name_of_a_variable_only(key: str, kept: str) -> None:
    models = {"providers": {"x": {"baseUrl": "https://x/", "apiKey": key, "models": [{"id": "m"}]}}}
    shared, left_out = shared_pi_settings(models)
    provider = {"baseUrl": "https://x/", "apiKey": kept, "models": [{"id": "m"}]}
    assert shared == {"providers": {"x": provider}}
    assert left_out == (() if kept == key else ("providers.x.apiKey",))


def test_headers_and_odd_values() -> None:
    odd = {
        "providers": {"x": {"headers": {"X-Key": "k", "X-Team": "t"}}, "y": 3, "z": {"apiKey": 1}}
    }
    shared, _ = shared_pi_settings(odd)
    assert shared["providers"] == {"x": {"headers": {"X-Team": "t"}}, "y": 3, "z": {"apiKey": 1}}
    assert shared_pi_settings({"providers": []}) == ({"providers": []}, ())
