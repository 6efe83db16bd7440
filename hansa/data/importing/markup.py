"""Extract the text of web pages and of JATS and PubMed articles."""

import io
import re
from collections.abc import Iterator
from typing import Any

from hansa.core.errors import UserError
from hansa.data.importing.tally import Tally

Element = Any  # an lxml element; lxml is imported only if there is XML to read
# HTML elements that are not part of the text.
SURROUNDINGS = [
    "script",
    "style",
    "noscript",
    "template",
    "nav",
    "header",
    "footer",
    "aside",
    "select",
    "button",
    "svg",
]
SURROUNDINGS += ["iframe", "select", "math", "head"]
BLOCKS = (
    "p|div|section|article|main|h[1-6]|ul|ol|li|dl|dt|dd|table|tr|td|th|caption|blockquote|pre|figure|figcaption|hr|br"
)
BLOCK_TAG = re.compile(rf"</?(?:{BLOCKS})\b", re.I)
ARTICLE = re.compile(
    rb"<(?:[\w-]+:)?(?:article|PubmedArticle|PubmedArticleSet|pmc-articleset|MedlineCitationSet)[\s>/]"
)
NOT_PROSE = ("table-wrap", "disp-formula", "inline-formula", "tex-math", "math", "ref-list", "fn", "graphic", "label")
XML_LOOK = 1 << 15


def needed(module: str) -> Any:
    """Import a module of the optional dependencies; raises `UserError` if it is not installed."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        raise UserError(
            f"importing text needs the Python module '{module}', which is not installed; "
            "install it with: pip install 'hansa[prepare]'"
        ) from None


def html_text(source: str) -> str:
    """The text of a web page, with blank lines between blocks."""
    parser = needed("selectolax.lexbor").LexborHTMLParser
    # Line ends in HTML are plain spaces. Blank lines inserted before the tags of blocks separate the paragraphs.
    tree = parser(BLOCK_TAG.sub(r"\n\n\g<0>", re.sub(r"\s+", " ", source)))
    tree.strip_tags(SURROUNDINGS)
    return str(tree.root.text()) if tree.root else ""


def xml_articles(stream: io.BufferedReader, place: str, tally: Tally) -> Iterator[tuple[str, str]]:
    """(place, text) of each article. For security, entities are not expanded and nothing is downloaded."""
    etree = needed("lxml.etree")
    if not ARTICLE.search(stream.peek(XML_LOOK)[:XML_LOOK]):
        tally.note("files", "XML of an unknown kind (known are JATS and PubMed)", place)
        return
    events = etree.iterparse(
        stream,
        events=("end",),
        tag=("{*}article", "{*}PubmedArticle", "{*}MedlineCitation"),
        resolve_entities=False,
        load_dtd=False,
        no_network=True,
        recover=True,
        remove_comments=True,
        remove_pis=True,
    )
    number = 0
    try:
        for _, element in events:
            parent = element.getparent()
            if parent is not None and _name(parent) == "PubmedArticle":
                continue  # the enclosing article has not been read completely
            number += 1
            line = element.sourceline or number
            text = "\n\n".join(_pubmed(element) if _name(element) != "article" else _jats(element))
            yield f"{place}:{line}", text
            _forget(element)
    except etree.XMLSyntaxError as error:
        tally.note("records", "not well-formed XML", place, detail=str(error))
    for entry in list(events.error_log)[:1]:
        tally.note("records", "not well-formed XML", f"{place}:{entry.line}", detail=entry.message)


def _forget(element: Element) -> None:
    """Free the memory of an article that was read, and of the elements before it."""
    element.clear()
    parent = element.getparent()
    while parent is not None and element.getprevious() is not None:
        del parent[0]


def _name(element: Element) -> str:
    return str(element.tag).rsplit("}", 1)[-1] if isinstance(element.tag, str) else ""


def _pubmed(article: Element) -> Iterator[str]:
    for element in article.iter("{*}ArticleTitle", "{*}AbstractText"):
        parent = element.getparent()
        if parent is None or _name(parent) != "OtherAbstract":  # the same abstract in another language
            yield _words(element)


def _jats(article: Element) -> Iterator[str]:
    for path in (".//{*}article-meta//{*}article-title", ".//{*}article-meta/{*}abstract", "./{*}body"):
        for part in article.findall(path):
            if _name(part) == "article-title":
                yield _words(part)
            else:
                yield from _paragraphs(part)


def _paragraphs(part: Element) -> Iterator[str]:
    for element in part.iter("{*}p", "{*}title"):
        above = {_name(ancestor) for ancestor in element.iterancestors()}
        if "p" not in above and not above.intersection(NOT_PROSE):
            yield _words(element)


def _words(element: Element) -> str:
    return " ".join("".join(_strings(element)).split())


def _strings(element: Element) -> Iterator[str]:
    """The text below an element, without formulas, tables and references to the bibliography."""
    yield element.text or ""
    for child in element:
        if _name(child) and _name(child) not in NOT_PROSE and child.get("ref-type") != "bibr":
            yield from _strings(child)
        yield child.tail or ""
