"""Links lead to the web, and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nest_engine.rendering.link import find_url, host, safe_url


@pytest.mark.parametrize(
    "value",
    [
        "javascript:alert(1)",
        " java\tscript:alert(1)",
        "\x01javascript:alert(1)",
        "JAVASCRIPT:alert(1)//https://example.org",
        "data:text/html,<script>",
        "vbscript:x",
        "file:///etc/passwd",
        "//example.org",
        "https:example.org",
        "https:\\\\example.org",
        "https://",
        "http://[",
        "handbook.pdf",
        "",
        None,
        7,
        ["https://example.org"],
    ],
)
def test_no_links(value):
    assert safe_url(value) == ""


@pytest.mark.parametrize(
    ("value", "url"),
    [
        ("https://example.org/a?b=c#d", "https://example.org/a?b=c#d"),
        ("  HTTP://Example.org\n", "HTTP://Example.org"),
        ("ht\ttps://example.org/\u202ex", "https://example.org/x"),
        ('https://example.org/"><script>', "https://example.org/%22%3E%3Cscript%3E"),
        ("https://example.org/ä b\\c`", "https://example.org/%C3%A4%20b%5Cc%60"),
        ("https://example.org/100%25", "https://example.org/100%25"),
        ("https://example.org/\ud800", "https://example.org/"),
    ],
)
def test_links(value, url):
    assert safe_url(value) == url


def test_the_host_is_the_one_that_browsers_go_to():
    assert host(safe_url("https://good.example@evil.example/")) == "evil.example"
    assert host(safe_url("https://good.example\\@evil.example/")) == "evil.example"


def test_the_first_good_address_counts():
    assert find_url({"url": "javascript:x", "source": "https://example.org"}) == "https://example.org"
    assert find_url({"source": "a.md"}, "https://example.net") == "https://example.net"
    assert find_url({}, "a.md") == ""


@given(st.text(), st.sampled_from(["", "javascript:", "https://", "http://x/"]))
def test_links_are_plain(text, start):
    url = safe_url(start + text)
    assert url == "" or (url.lower().startswith(("http://", "https://")) and url.isascii())
    assert not set(url) & set('"<>\\` \n\t')
