"""The site's search, in a real browser, answers questions that begin with "how do I".

The search matches words and beginnings of words, and counts titles and headings most.  When a
question finds another page first, a title or heading should have the question's words: that helps
a reader of the navigation too.
"""

from __future__ import annotations

import pytest

from admin.test_admin_console import browser, needs_browser
from docs.pages import ROOT
from docs.serving import served

#: What follows "how do I", and the page that the search must find first; one of them.
QUESTIONS = {
    "add a bookie": "how-to/add-a-bookie",
    "take a bookie out of service": "how-to/remove-a-bookie",
    "replace a broken disk": "how-to/replace-a-disk",
    "spread replicas over racks": "how-to/add-a-rack",
    "rotate a certificate": "how-to/rotate-a-certificate",
    "turn on TLS": "how-to/turn-on-tls",
    "require authentication": "how-to/require-authentication",
    "sign in with OpenID Connect": "how-to/sign-in-with-openid-connect",
    "move metadata from ZooKeeper to etcd": "how-to/move-metadata",
    "restore a backup of the metadata": "how-to/back-up-metadata",
    "size a cluster": "how-to/size-a-cluster",
    "choose the number of replicas": "how-to/choose-quorums",
    "upgrade without a pause": "how-to/upgrade",
    "get disk space back": "how-to/free-disk-space",
    "balance full and empty disks": "how-to/balance-disks",
    "find out why a ledger is under-replicated": "how-to/find-out-why-a-ledger-is-not-repaired",
    "close a ledger whose writer died": "how-to/recover-a-ledger",
    "check for damaged entries": "how-to/check-for-damage",
    "see the lag of a consumer": "how-to/watch-lag",
    "write a record exactly once": "how-to/write-exactly-once",
    "write fast": "how-to/write-fast",
    "take over a stream": "how-to/take-over-a-stream",
    "delete old records": "how-to/keep-a-stream-small",
    "elect a leader": "how-to/elect-a-leader",
    "read a stream with pandas": "how-to/read-with-pandas",
    "use Spark": "how-to/use-spark",
    "keep a checkpoint in the cluster": "how-to/keep-checkpoints-in-the-cluster",
    "use it in Jupyter": "how-to/use-in-a-notebook",
    "use it without asyncio": "how-to/use-without-asyncio",
    "test my program": "testing how-to/test-your-program",
    "store a file": "how-to/store-a-file",
    "run Pulsar": "pulsar tutorials/pulsar",
    "deploy on Kubernetes": "how-to/deploy-on-kubernetes",
    "take a Java bookie over": "adoption tutorials/java-cluster",
    "give a bookie back to Java": "how-to/give-a-bookie-back",
    "share work in a consumer group": "tutorials/consumer-group",
    "monitor with Prometheus": "how-to/monitor",
    "send traces with OpenTelemetry": "how-to/trace-with-opentelemetry",
    "handle errors": "how-to/handle-errors",
    "copy a stream to another cluster": "how-to/copy-a-stream",
    "move old segments to object storage": "how-to/offload-a-stream",
    "look up the latest value of a key": "how-to/keep-a-table",
    "limit compaction": "how-to/limit-background-work",
    "use more cores of a host": "how-to/use-more-cores",
    "read past a gap": "how-to/read-past-a-gap",
    "use labels of bookies": "how-to/use-labels",
    "deploy with systemd": "how-to/deploy-with-systemd",
    "deploy with Compose": "how-to/deploy-with-compose",
    "go on when bookie adopt refuses": "how-to/when-an-adoption-is-refused",
}


def test_every_how_to_is_the_answer_to_a_question():
    answers = set(" ".join(QUESTIONS.values()).split())
    pages = {f"how-to/{page.stem}" for page in (ROOT / "docs/how-to").glob("*.md")}
    assert pages - answers == {"how-to/index"}


#: Types into the search, and answers with the pages it shows when they change no more.
_ASK = """
const [question, done] = arguments;
const input = document.querySelector("input.md-search__input");
const type = text => {
  input.focus();
  input.value = text;
  for (const name of ["keyup", "input"]) input.dispatchEvent(new Event(name, {bubbles: true}));
};
const shown = () => [...document.querySelectorAll("a.md-search-result__link")]
  .map(link => link.pathname.slice(1));
let before = "", unchanged = 0;
const look = () => {
  const now = shown();
  unchanged = now.length && now.join() === before ? unchanged + 1 : 0;
  before = now.join();
  if (unchanged > 2) return done(now);
  setTimeout(look, 30);
};
const forget = () => {
  if (!shown().length) { type(question); return look(); }
  setTimeout(forget, 30);
};
type("");
forget();
"""


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""
    with served(site) as address:
        yield address


@needs_browser
@pytest.mark.xdist_group("site")
def test_the_search_finds_the_page_that_answers_first(address):
    found = {}
    with browser() as driver:
        driver.set_script_timeout(60)
        driver.get(f"{address}/index.html")
        for question in QUESTIONS:
            found[question] = driver.execute_async_script(_ASK, f"how do I {question}")[:3]
    wrong = {
        question: pages
        for question, pages in found.items()
        if pages[0].removesuffix(".html") not in QUESTIONS[question].split()
    }
    assert wrong == {}


def test_there_are_thirty_questions_and_more():
    assert len(QUESTIONS) >= 30
