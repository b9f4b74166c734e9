"""The page at `/` as a person meets it: in a real Chromium, before a real server with two arms."""

import json
import shutil
from contextlib import contextmanager

import pytest

from .processes import Client, running

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (apt-get install chromium)")
# A machine under load is slow; what is waited for comes much sooner.
PATIENCE = 60_000
# Markup for a browser, and markup that charts know.
HOSTILE = '<b>x</b><img src=x onerror="document.title=1">'


def test_the_files_come_from_this_server_with_a_strict_policy(server):
    client = server(token="t" * 16).client
    for path in ("/", "/static/page.js", "/static/form.js", "/static/page.css", "/static/plotly.min.js"):
        found = client.get(path)
        assert found.status_code == 200
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; connect-src 'self'" in policy
        again = client.get(path, headers={"if-none-match": found.headers["etag"]})
        assert again.status_code == 304
    assert client.get("/model").status_code == 401


def test_the_chart_library_is_packed_for_those_who_can_unpack_it(server):
    client = server().client
    packed = client.get("/static/plotly.min.js", headers={"accept-encoding": "gzip"})
    plain = client.get("/static/plotly.min.js", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert "max-age" in plain.headers["cache-control"]


@pytest.fixture(scope="module")
def port(trained, tmp_path_factory):
    """A server whose A/B test has seen a little traffic."""
    log = tmp_path_factory.mktemp("page") / "log.sqlite"
    arms = ("--names", "old,new", "--split-field", "user", "--log", log)
    with running(trained.run, trained.run, *arms) as (_, number), Client(number) as client:
        for user in range(20):
            _, shown = client.post("/predict", rows=[{"user": f"u{user}", "price": 0.5}])
            if user % 3 == 0:
                client.post("/event", request_id=shown["request_id"])
        yield number


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@contextmanager
def opened(browser, port, width=1000, refused=False, prepare=lambda page: None):
    """The page after its first answer. What it must never do is checked at the end: complain, or ask another host."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_default_timeout(PATIENCE)
    told, asked = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    prepare(page)
    page.goto(f"http://127.0.0.1:{port}/")
    if not refused:
        page.wait_for_selector("#heat-chart .heatmaplayer image", state="attached")
    try:
        yield page
    finally:
        page.close()
    # Chromium tells of every answer that is a refusal.
    expected = "Failed to load resource" if refused else "nothing"
    assert [text for text in told if not text.startswith(expected)] == []
    assert asked
    assert [url for url in asked if not url.startswith((f"http://127.0.0.1:{port}/", "data:"))] == []


def field(page, name):
    return page.locator(f"input[data-field={name}]")


def state(page, name):
    return page.locator(f".field:has(input[data-field={name}]) .state")


def wait_for_probability(page, expected):
    found = "Math.abs(document.querySelector('#probability').dataset.exact - expected) < 1e-12"
    page.wait_for_function(f"expected => {found}", arg=expected)


def predicted(port, row):
    with Client(port) as client:
        return client.post("/predict", rows=[row], arm="new", log=False)[1]["probabilities"][0]


@in_browser
def test_values_give_the_servers_probability_and_unseen_ones_are_other(browser, port):
    with opened(browser, port) as page:
        example = {name: field(page, name).input_value() for name in ("user", "price", "tags")}
        assert all(example.values())
        wait_for_probability(page, predicted(port, example))
        field(page, "user").fill("u3")
        wait_for_probability(page, predicted(port, example | {"user": "u3"}))
        assert state(page, "user").text_content() == ""
        # An empty field is missing; Enter asks at once.
        field(page, "price").fill("")
        field(page, "price").press("Enter")
        wait_for_probability(page, predicted(port, {"user": "u3", "tags": example["tags"]}))
        # Several values of a set, one of them unknown.
        field(page, "tags").fill("a|c|never")
        wait_for_probability(page, predicted(port, {"user": "u3", "tags": ["a", "c", "never"]}))
        field(page, "user").fill(HOSTILE)
        wait_for_probability(page, predicted(port, {"user": HOSTILE, "tags": "a|c|never"}))
        for name in ("user", "tags"):
            page.wait_for_function(
                "state => state.textContent.startsWith('other: ')", arg=state(page, name).element_handle()
            )
        # It stands in the chart as text.
        page.wait_for_function("() => document.querySelector('#fields-chart').textContent.includes('<b>x</b>')")
        assert page.locator("img").count() == 0
        assert page.title() == "fieldwise"


@in_browser
def test_fields_complete_from_the_vocabulary(browser, port):
    with opened(browser, port) as page:
        for name, typed, expected in (("user", "u1", {"u1", "u12"}), ("tags", "a|", {"a|b", "a|d"})):
            field(page, name).fill(typed)
            options = f"#{field(page, name).get_attribute('list')} option"
            page.wait_for_function(
                "([options, wanted]) => wanted.every(text => "
                "[...document.querySelectorAll(options)].some(option => option.value === text))",
                arg=[options, sorted(expected)],
            )
        assert field(page, "price").get_attribute("type") == "number"


@in_browser
def test_every_kind_of_field_has_its_input(browser, everything):
    lr = everything.bundle("lr", out="lr-page")
    # A server without an event log refuses the report of a test.
    with running(lr, "--log", "none") as (_, own), opened(browser, own, refused=True) as page, Client(own) as client:
        page.wait_for_function("() => document.querySelector('#fields-chart').textContent.includes('user: ')")
        texts, numbers = ("user", "item", "tags", "when"), ("price", "age", "size")
        assert {field(page, name).get_attribute("type") for name in texts} == {"text"}
        assert {field(page, name).get_attribute("type") for name in numbers} == {"number"}
        assert field(page, "item").get_attribute("list") is None
        assert field(page, "tags").input_value().count("|") == 1
        # LR has no pairs.
        page.wait_for_selector("#heat-chart", state="hidden")
        assert "This model looks at no pairs." in page.locator("#pairs").text_content()
        page.wait_for_function("() => document.querySelector('#test-state').textContent.includes('no event log')")
        page.click("#clear")
        wait_for_probability(page, client.post("/predict", rows=[{}])[1]["probabilities"][0])


@in_browser
def test_pasted_candidates_stand_in_the_servers_order(browser, port):
    rows = [{"user": f"u{number}", "tags": HOSTILE if number == 2 else "a"} for number in range(6)]
    with opened(browser, port) as page, Client(port) as client:
        assert page.locator("#candidates").input_value().startswith("price\n")
        page.select_option("#arm", "new")
        context = {name: field(page, name).input_value() for name in ("user", "price", "tags")}
        _, found = client.post("/rank", context=context, candidates=rows, arm="new", log=False)
        order = [str(one["index"]) for one in found["candidates"]]
        quoted = "\n".join(['"' + row["user"] + '",' + '"' + row["tags"].replace('"', '""') + '"' for row in rows])
        for text in ("user,tags\n" + quoted, "\n".join(map(json.dumps, rows))):
            page.fill("#candidates", text)
            page.press("#candidates", "Control+Enter")
            page.wait_for_function(
                "order => [...document.querySelectorAll('#ranking tbody tr')].map(row => row.dataset.index).join() "
                "=== order",
                arg=",".join(order),
            )
            page.evaluate("document.querySelector('#ranking tbody').replaceChildren()")
        assert page.locator("img").count() == 0


@in_browser
def test_what_is_refused_is_told_where_it_happened(browser, port):
    with opened(browser, port, refused=True) as page:
        page.wait_for_selector("#heat-chart .heatmaplayer image", state="attached")
        told = "([place, text]) => document.querySelector(place).textContent.includes(text)"
        for text, expected in (
            ("usr\nu1", "unknown field 'usr'; did you mean 'user'?"),
            ("user,tags\nu1", "Candidate 1 has 1 cells, but the header has 2."),
            ('{"user": "u1"}\n{"user"', "Line 2 is not JSON"),
            ("", "Paste at least one candidate."),
        ):
            page.fill("#candidates", text)
            page.click("#rank-button")
            page.wait_for_function(told, arg=["#rank-error", expected])
        # A busy server is asked again by itself.
        busy = {"status": 429, "headers": {"Retry-After": "1"}, "json": {"detail": "64 requests wait"}}
        page.route("**/predict", lambda route: route.fulfill(**busy))
        field(page, "user").fill("u4")
        page.wait_for_function(told, arg=["#row-error", "The server is busy: 64 requests wait"])
        page.unroute("**/predict")
        page.wait_for_function("() => document.querySelector('#row-error').textContent === ''")


@in_browser
def test_a_token_is_asked_for_and_kept(browser, port):
    def guard(route):
        if route.request.headers.get("authorization") == "Bearer right":
            route.continue_()
        else:
            route.fulfill(status=401, json={"detail": "the token is missing or wrong"})

    def guarded(page):
        for path in ("model", "predict", "explain", "values*", "abtest"):
            page.route(f"**/{path}", guard)

    with opened(browser, port, refused=True, prepare=guarded) as page:
        page.wait_for_selector("#token")
        assert not page.locator("#try").is_visible()
        page.fill("#token", "wrong")
        page.press("#token", "Enter")
        page.wait_for_function("() => document.querySelector('#entrance-error').textContent !== ''")
        page.fill("#token", "right")
        page.press("#token", "Enter")
        page.wait_for_selector("#heat-chart .heatmaplayer image", state="attached")
        page.reload()
        page.wait_for_selector("#heat-chart .heatmaplayer image", state="attached")
        assert not page.locator("#entrance").is_visible()


@in_browser
def test_the_arms_of_the_test_are_watched_on_a_narrow_screen(browser, port):
    with opened(browser, port, width=360) as page, Client(port) as client:
        page.click("#rank-button")
        page.wait_for_selector("#ranking tbody tr")
        page.wait_for_selector("#days-chart .errorbar", state="attached")
        shown = (
            "[...document.querySelectorAll('#arms tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        )
        before = {name: int(rows) for name, _, rows, *_ in page.evaluate(shown)}
        assert sum(before.values()) == 20
        assert before.keys() == {"old", "new"}
        client.post("/predict", rows=[{"user": "u1"}])
        total = f"() => {shown}.reduce((sum, row) => sum + Number(row[2]), 0) === 21"
        page.wait_for_function(total)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        # The keyboard goes through the form in the order of the page.
        field(page, "user").focus()
        order = []
        for _ in range(3):
            order.append(page.evaluate("document.activeElement.dataset.field"))
            page.keyboard.press("Tab")
        assert order == ["user", "price", "tags"]
