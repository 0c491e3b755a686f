"""Who may read a live page."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from fedpeft.page.guard import ACT, Access, Guard


class Browser:
    """A client with cookies that calls the application in this process."""

    def __init__(self, access: Access):
        def content(request: Request) -> PlainTextResponse:
            return PlainTextResponse("content")

        methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS"]
        app = Starlette(routes=[Route("/{path:path}", content, methods=methods)])
        self._app = Guard(app, access, "default-src 'none'")
        self._cookies = httpx.Cookies()

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            base = "http://127.0.0.1:8321"
            async with httpx.AsyncClient(
                transport=transport, base_url=base, cookies=self._cookies
            ) as client:
                response = await client.request(method, path, **options)
                self._cookies.update(client.cookies)
                return response

        return asyncio.run(answer())


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:9000", "localhost:8321", "[::1]:8321", "127.9.9.9"]
)
def test_loopback_is_served_by_any_of_its_names_and_ports(host: str) -> None:
    assert Browser(Access()).get("/", headers={"host": host}).text == "content"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", "["])
def test_a_foreign_host_is_refused(host: str) -> None:
    answer = Browser(Access()).get("/", headers={"host": host})
    assert answer.status_code == 403 and "content" not in answer.text


def test_outside_loopback_only_the_machine_s_names_and_addresses_are_served() -> None:
    access = Access(names={"gpu7", "gpu7.example.org"})
    hosts = {"gpu7:8321": 200, "192.168.1.7": 200, "localhost": 200, "gpu8": 403, "evil.org": 403}
    for host, status in hosts.items():
        assert Browser(access).get("/", headers={"host": host}).status_code == status, host


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1:8321"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),  # a link
    ],
)
def test_pages_of_other_sites_are_refused(headers: dict[str, str], status: int) -> None:
    assert Browser(Access()).get("/", headers=headers).status_code == status


def test_only_reading_is_allowed() -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert Browser(Access()).request(method, "/").status_code == 405


def test_the_token_of_the_address_becomes_a_cookie() -> None:
    browser = Browser(Access(token="secret", cookie="fedpeft-8321"))
    assert browser.get("/").status_code == 401
    first = browser.get("/runs?name=a%26b&token=secret&name=c")
    assert first.status_code == 303
    assert first.headers["location"] == "/runs?name=a%26b&name=c"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    assert browser.get("/runs?name=c").text == "content"


@pytest.mark.parametrize("given", ["", "wrong", "secre", "secrets", "s\xe9cret"])
def test_a_wrong_token_is_refused(given: str) -> None:
    browser = Browser(Access(token="secret"))
    assert browser.get("/", params={"token": given}).status_code == 401
    for cookie in (f"fedpeft={given}", "fedpeft", "other=secret", ";;=;"):
        header = {"cookie": cookie.encode("latin-1")}
        assert browser.get("/", headers=header).status_code == 401


def test_the_redirect_after_a_token_stays_on_this_host() -> None:
    answer = Browser(Access(token="secret")).get(
        "http://127.0.0.1:8321//evil.example/?token=secret"
    )
    assert answer.status_code == 303 and answer.headers["location"] == "/evil.example/"


def test_every_answer_has_the_headers_that_protect_it() -> None:
    browser = Browser(Access())
    for answer in (browser.get("/"), browser.get("/", headers={"host": "evil.example"})):
        assert answer.headers["content-security-policy"] == "default-src 'none'"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


OWN = {"origin": "http://127.0.0.1:8321", ACT: "act"}


def test_a_page_that_can_act_needs_its_origin_and_its_second_token() -> None:
    browser = Browser(Access(token="secret", act="act"))
    assert browser.request("POST", "/", headers=OWN).status_code == 401  # no cookie yet
    browser.get("/?token=secret")
    assert browser.request("POST", "/", headers=OWN).text == "content"
    for wrong in (
        {ACT: ""},
        {ACT: "secret"},
        {"origin": "http://127.0.0.1:9000"},
        {"origin": "https://127.0.0.1:8321"},
        {"origin": "null"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
    ):
        assert browser.request("POST", "/", headers=OWN | wrong).status_code == 403
    assert browser.request("POST", "/", headers={ACT: "act"}).status_code == 403  # no origin
    assert browser.request("POST", "/?token=secret", headers=OWN).status_code == 200
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert browser.request(method, "/", headers=OWN).status_code == 405


def test_without_a_second_token_nothing_can_be_changed() -> None:
    for token in ("", "act"):
        answer = Browser(Access()).request("POST", "/", headers=OWN | {ACT: token})
        assert answer.status_code == 405
