"""Synthetic parallel data: German sentences and their English translations in five domains.

The domains differ in vocabulary, sentence patterns and length.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np

from hansa.core.seeds import stream

# nominative|accusative|English
PEOPLE = """der Minister|den Minister|the minister · die Richterin|die Richterin|the judge ·
der Nachbar|den Nachbarn|the neighbour · die Ärztin|die Ärztin|the doctor · der Lehrer|den Lehrer|the teacher ·
die Kundin|die Kundin|the customer · das Kind|das Kind|the child · die Forscherin|die Forscherin|the researcher ·
der Bote|den Boten|the messenger"""
THINGS = """der Vertrag|den Vertrag|the contract · die Brücke|die Brücke|the bridge ·
das Haus|das Haus|the house · der Brief|den Brief|the letter · die Stadt|die Stadt|the city ·
das Gesetz|das Gesetz|the law · der Plan|den Plan|the plan · die Grenze|die Grenze|the border ·
das Wasser|das Wasser|the water · der Markt|den Markt|the market"""
IDEAS = """das Gehirn|das Gehirn|the brain · die Sprache|die Sprache|language · der Zufall|den Zufall|chance ·
die Zukunft|die Zukunft|the future · das Klima|das Klima|the climate · die Freiheit|die Freiheit|freedom ·
der Fortschritt|den Fortschritt|progress · die Musik|die Musik|music"""
OBJECTS = """die Datei|die Datei|file · der Ordner|den Ordner|folder · das Fenster|das Fenster|window ·
die Verbindung|die Verbindung|connection · der Drucker|den Drucker|printer · das Konto|das Konto|account ·
die Sitzung|die Sitzung|session · der Bildschirm|den Bildschirm|screen"""
# German|English
TIMES = "gestern|yesterday · am Montag|on Monday · im Mai|in May · heute früh|this morning · vor Jahren|years ago"
DONE = "besucht|visited · gelobt|praised · gesehen|seen · verkauft|sold · verteidigt|defended · vergessen|forgotten"
DO = "erklären|explain · messen|measure · schützen|protect · verändern|change · verstehen|understand"
NAMES = "strlen · fopen · array_map · sort · implode · substr · date · explode"
RESULTS = """eine Zahl|a number · eine Zeichenkette|a string · ein Feld|an array · einen Fehler|an error ·
den Wert null|the value null"""
NUMBERS = "zwei|two · drei|three · vier|four · fünf|five · sechs|six · sieben|seven · acht|eight"

# {who} {whom} {what}: people and things; {idea}, {file}: nominative; {…4}: accusative; the others as listed above.
DOMAINS: dict[str, list[tuple[str, str]]] = {
    "news": [
        ("{Time} hat {who} {what4} {done}.", "{Who} has {done} {what} {time}."),
        ("{Who} und {whom} haben {what4} {done}.", "{Who} and {whom} have {done} {what}."),
        ("Nach Angaben der Polizei wurde {what} {time} {done}.", "According to the police, {what} was {done} {time}."),
        ("{Who} will {what4} {do}, sagte {whom} {time}.", "{Who} wants to {do} {what}, {whom} said {time}."),
    ],
    "subtitles": [
        ("Siehst du {what4}?", "Do you see {what}?"),
        ("Ich habe {whom4} nie {done}.", "I have never {done} {whom}."),
        ("Wo ist {who}?", "Where is {who}?"),
        ("Komm, wir müssen {whom4} {do}!", "Come on, we have to {do} {whom}!"),
    ],
    "talks": [
        ("Wenn wir {idea4} {do} wollen, brauchen wir {what4}.", "If we want to {do} {idea}, we need {what}."),
        ("Vor {number} Jahren habe ich angefangen, {idea4} zu {do}.", "{Number} years ago I began to {do} {idea}."),
        ("Und genau deshalb ist {idea} so wichtig.", "And that is exactly why {idea} is so important."),
    ],
    "manual": [
        ("Die Funktion {name}() liefert {result}.", "The function {name}() returns {result}."),
        ("{name}() erwartet {number} Parameter.", "{name}() expects {number} parameters."),
        ("Siehe auch {name}().", "See also {name}()."),
    ],
    "menus": [
        ("{File4} öffnen", "Open the {file}"),
        ("Möchten Sie {file4} wirklich löschen?", "Do you really want to delete the {file}?"),
        ("{File} wurde nicht gefunden.", "The {file} was not found."),
    ],
}
SLOTS = {
    "who": PEOPLE, "whom": PEOPLE, "what": THINGS, "idea": IDEAS, "file": OBJECTS, "time": TIMES, "done": DONE,
    "do": DO, "name": NAMES, "result": RESULTS, "number": NUMBERS,
}  # fmt: skip
SIZES = {"news": 3000, "subtitles": 1200, "talks": 600, "manual": 300, "menus": 150}


def pairs(domain: str, count: int, seed: int = 0) -> Iterator[dict[str, str]]:
    """``count`` rows {"src", "tgt", "src_lang", "tgt_lang"} of a domain."""
    rng = stream(seed, "phrases", domain)
    for _ in range(count):
        german, english = DOMAINS[domain][int(rng.integers(len(DOMAINS[domain])))]
        left, right = _words(rng)
        yield {"src": german.format(**left), "tgt": english.format(**right), "src_lang": "de", "tgt_lang": "en"}


def _words(rng: np.random.Generator) -> tuple[dict[str, str], dict[str, str]]:
    """A value for every slot, in both languages; capitalised if the name of the slot is."""
    left: dict[str, str] = {}
    right: dict[str, str] = {}
    for slot, text in SLOTS.items():
        forms = _entries(text)[int(rng.integers(len(_entries(text))))]
        for suffix, form in (("", forms[0]), ("4", forms[1] if len(forms) == 3 else forms[0])):
            left |= {slot + suffix: form, slot.capitalize() + suffix: _capital(form)}
        right |= {slot: forms[-1], slot.capitalize(): _capital(forms[-1])}
    return left, right


@cache
def _entries(text: str) -> list[list[str]]:
    return [entry.split("|") for entry in " ".join(text.split()).split(" · ")]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
