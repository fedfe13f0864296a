"""`serve.settings`: what cannot be meant is refused, and a token is not shown."""

import pytest

from flatfold.serve.settings import Settings

TOKEN = "s3cret-" * 4


@pytest.mark.parametrize("name", ["max_batch", "max_waiting", "max_body", "max_images", "max_pixels"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_limits_are_whole_numbers_from_1_on(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a whole number from 1 on, got"):
        Settings(**{name: value})


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_limit_is_a_number_of_seconds(seconds):
    with pytest.raises(ValueError, match=r"timeout must be a number of seconds above 0, got .* 30 is customary"):
        Settings(timeout=seconds)


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "a space in the middle", "line\nbreak-in-a-token", "ümlaut" * 4]
)
def test_a_token_that_cannot_be_one_is_refused_without_showing_it(token):
    with pytest.raises(
        ValueError, match=r"a token must have at least 16 characters, .* Make one: python -c"
    ) as refused:
        Settings(token=token)
    assert not token or token not in str(refused.value)


def test_a_token_is_not_part_of_the_text_of_settings():
    assert Settings(token=TOKEN).token == TOKEN
    assert TOKEN not in repr(Settings(token=TOKEN))


@pytest.mark.parametrize("host", ["http://a", "a:80", "A.org", "", "a b", "::1"])
def test_a_host_is_a_name_without_scheme_and_port(host):
    with pytest.raises(ValueError, match=r"a host is a name or an address in small letters, without scheme and port"):
        Settings(hosts=frozenset({host}))


@pytest.mark.parametrize("origin", ["a.org", "https://a.org/", "*", "null", "ftp://a.org", "https://A.org", "https://"])
def test_an_origin_is_a_scheme_and_a_host(origin):
    with pytest.raises(ValueError, match=r"an origin is a scheme and a host in small letters, perhaps with a port"):
        Settings(origins=frozenset({origin}))


def test_names_addresses_and_ports_are_understood():
    Settings(hosts=frozenset({"guard.example.org", "10.0.0.7", "[fd00::7]"}), origins=frozenset({"http://[::1]:80"}))
    Settings(hosts=None, origins=frozenset({"https://example.org", "http://localhost:3000"}))
