"""The generated shop behind toolstep/SQL-v0: its tables, and questions about them with the query that answers each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from toolstep.envs.tasks.draw import Draw
from toolstep.envs.tasks.result_set import Cell, unique

SCHEMA = """
CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, joined TEXT NOT NULL);
CREATE TABLE product (id INTEGER PRIMARY KEY, name TEXT NOT NULL, category TEXT NOT NULL, price INTEGER NOT NULL);
CREATE TABLE purchase (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customer(id), day TEXT NOT NULL);
CREATE TABLE item (
  purchase_id INTEGER NOT NULL REFERENCES purchase(id),
  product_id INTEGER NOT NULL REFERENCES product(id),
  quantity INTEGER NOT NULL
);
"""
# fmt: off
_CITIES = (
    "Aldermouth", "Belbury", "Corwick", "Dunfield", "Elmstead", "Fairhaven", "Glenport", "Hollowby", "Ironbridge",
    "Jarrowdale", "Kestrelton", "Larkham", "Millbrook", "Northgate", "Oakworth", "Penstowe", "Quarrington",
    "Ravensford", "Saltmere", "Thornby", "Underwood", "Vinehall", "Westering", "Yarmouth",
)
_FIRST = (
    "Ada", "Bruno", "Carla", "Dmitri", "Elena", "Farid", "Greta", "Hassan", "Ines", "Jonas", "Kaya", "Lorenz", "Mina",
    "Noor", "Oskar", "Paula", "Ravi", "Sofia", "Tomas", "Ursula", "Viktor", "Wanda", "Yara", "Zeno",
)
_FAMILY = (
    "Adler", "Bianchi", "Castro", "Dubois", "Eriksen", "Fontaine", "Grant", "Horvat", "Ivanov", "Jansen", "Kovacs",
    "Lindgren", "Moreau", "Novak", "Okafor", "Petrov", "Quinn", "Rossi", "Silva", "Tanaka", "Ueda", "Vogel", "Weber",
)
_MATERIALS = ("oak", "steel", "glass", "linen", "copper", "bamboo", "marble", "leather", "pine", "ceramic")
_THINGS = {
    "garden": ("bench", "lantern", "planter", "spade", "birdhouse"),
    "kitchen": ("bowl", "kettle", "pan", "grater", "jug"),
    "office": ("lamp", "tray", "shelf", "folder", "clock"),
    "toys": ("train", "puzzle", "robot", "yo-yo", "castle"),
}
# fmt: on
YEARS = (2022, 2023, 2024)
Row = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Shop:
    """The rows of each table, and what a question may speak of."""

    customers: list[tuple[int, str, str, str]]
    products: list[tuple[int, str, str, int]]
    purchases: list[tuple[int, int, str]]
    items: list[tuple[int, int, int]]

    @property
    def cities(self) -> list[str]:
        return sorted({city for _, _, city, _ in self.customers})

    def script(self) -> str:
        """The statements that make the database."""
        tables: dict[str, Sequence[tuple[object, ...]]] = {
            "customer": self.customers,
            "product": self.products,
            "purchase": self.purchases,
            "item": self.items,
        }
        parts = [SCHEMA.strip()]
        for table, rows in tables.items():
            values = ",\n".join(f"({', '.join(map(_literal, row))})" for row in rows)
            parts.append(f"INSERT INTO {table} VALUES\n{values};")
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the query that answers it.

    ordered: the order of the rows is asked for.  top, columns: only so many rows or columns of the query are; no two of
    the rows, or the next one, have the same last column then.
    """

    text: str
    query: str
    ordered: bool = False
    top: int | None = None
    columns: int | None = None


def make_shop(draw: Draw) -> Shop:
    """Fourteen customers in four cities, ten products, thirty-six purchases."""
    cities = draw.sample(_CITIES, 4)
    names: list[str] = []
    while len(names) < 14:
        name = f"{draw.choice(_FIRST)} {draw.choice(_FAMILY)}"
        if name not in names:
            names.append(name)
    customers = [
        (i + 1, name, draw.choice(cities), _day(draw, date(2019, 1, 1), 1_000)) for i, name in enumerate(names)
    ]
    products: list[tuple[int, str, str, int]] = []
    while len(products) < 10:
        category = draw.choice(list(_THINGS))
        name = f"{draw.choice(_MATERIALS)} {draw.choice(_THINGS[category])}"
        if all(name != other for _, other, _, _ in products):
            products.append((len(products) + 1, name, category, draw.integer(4, 240)))
    buyers = draw.sample(range(1, 15), 12)  # two have never bought anything
    purchases = [(i + 1, draw.choice(buyers), _day(draw, date(YEARS[0], 1, 1), 1_095)) for i in range(36)]
    items = [
        (purchase, product, draw.integer(1, 5))
        for purchase, _, _ in purchases
        for product in draw.sample(range(1, 11), draw.integer(1, 3))
    ]
    return Shop(customers, products, purchases, items)


def answer(script: str, question: Question) -> list[Row] | None:
    """The rows that are right; None where a question has no answer, a tie, or too many rows to ask for."""
    connection = sqlite3.connect(":memory:")
    try:
        connection.executescript(script)
        rows: list[Row] = connection.execute(question.query).fetchall()
    finally:
        connection.close()
    if question.top is not None:
        ranks = [row[-1] for row in rows[: question.top + 1]]
        if len(rows) < question.top or len(set(ranks)) < len(ranks):
            return None
        rows = [row[: question.columns] for row in rows[: question.top]]
    fits = 1 <= len(rows) <= 8 and unique(rows) and all(cell is not None for row in rows for cell in row)
    return rows if fits else None


def _day(draw: Draw, first: date, days: int) -> str:
    return (first + timedelta(days=draw.integer(0, days - 1))).isoformat()


def _literal(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


# ------------------------------------------------------------------------------------------------------------ questions
SPENT = "item JOIN purchase ON purchase.id = purchase_id JOIN product ON product.id = product_id"
BOUGHT = f"{SPENT} JOIN customer ON customer.id = customer_id"
_EUROS = "SUM(quantity * price)"


def _joined(draw: Draw, shop: Shop) -> Question:
    name = draw.choice(shop.customers)[1]
    return Question(f"On which day did {name} join?", f"SELECT joined FROM customer WHERE name = {_literal(name)}")


def _price(draw: Draw, shop: Shop) -> Question:
    name = draw.choice(shop.products)[1]
    return Question(f"What does the {name} cost?", f"SELECT price FROM product WHERE name = {_literal(name)}")


def _cheaper(draw: Draw, shop: Shop) -> Question:
    most = draw.integer(20, 200)
    return Question(
        f"Which products cost less than {most}?", f"SELECT name FROM product WHERE price < {most} ORDER BY name"
    )


def _count_joined(draw: Draw, shop: Shop) -> Question:
    day, after = _day(draw, date(2019, 3, 1), 800), draw.chance(0.5)
    return Question(
        f"How many customers joined {'after' if after else 'before'} {day}?",
        f"SELECT COUNT(*) FROM customer WHERE joined {'>' if after else '<'} '{day}'",
    )


def _people_of(draw: Draw, shop: Shop) -> Question:
    city, year = draw.choice(shop.cities), draw.integer(2019, 2021)
    return Question(
        f"Which customers from {city} joined in {year}?",
        f"SELECT name FROM customer WHERE city = '{city}' AND joined LIKE '{year}-%' ORDER BY name",
    )


def _spent(draw: Draw, shop: Shop) -> Question:
    name = draw.choice(shop.customers)[1]
    return Question(
        f"How much has {name} spent in total?",
        f"SELECT {_EUROS} FROM {BOUGHT} WHERE customer.name = {_literal(name)}",
    )


def _buyers(draw: Draw, shop: Shop) -> Question:
    name = draw.choice(shop.products)[1]
    return Question(
        f"Which customers have bought the {name}?",
        f"SELECT DISTINCT customer.name FROM {BOUGHT} WHERE product.name = {_literal(name)} ORDER BY 1",
    )


def _units(draw: Draw, shop: Shop) -> Question:
    name, year = draw.choice(shop.products)[1], draw.choice(YEARS)
    return Question(
        f"How many units of the {name} were sold in {year}?",
        f"SELECT SUM(quantity) FROM {SPENT} WHERE product.name = {_literal(name)} AND day LIKE '{year}-%'",
    )


def _purchases_of(draw: Draw, shop: Shop) -> Question:
    city, year = draw.choice(shop.cities), draw.choice(YEARS)
    return Question(
        f"How many purchases did customers from {city} make in {year}?",
        "SELECT COUNT(*) FROM purchase JOIN customer ON customer.id = customer_id "
        f"WHERE city = '{city}' AND day LIKE '{year}-%'",
    )


def _best_category(draw: Draw, shop: Shop) -> Question:
    city = draw.choice(shop.cities)
    return Question(
        f"On which category have customers from {city} spent the most?",
        f"SELECT category, {_EUROS} FROM {BOUGHT} WHERE city = '{city}' GROUP BY category ORDER BY 2 DESC",
        top=1,
        columns=1,
    )


def _best_customers(draw: Draw, shop: Shop) -> Question:
    count, year = draw.integer(2, 4), draw.choice(YEARS)
    city = draw.choice([*shop.cities, ""])
    where, only = (f" from {city}", f" AND city = '{city}'") if city else ("", "")
    return Question(
        f"Which {count} customers{where} spent the most in {year}, and how much did each spend? The highest first.",
        f"SELECT customer.name, {_EUROS} FROM {BOUGHT} WHERE day LIKE '{year}-%'{only} "
        "GROUP BY customer.id ORDER BY 2 DESC",
        ordered=True,
        top=count,
    )


def _units_by_category(draw: Draw, shop: Shop) -> Question:
    city, year = draw.choice(shop.cities), draw.choice(YEARS)
    return Question(
        f"How many units of each category did customers from {city} buy in {year}? Give the category and the number.",
        f"SELECT category, SUM(quantity) FROM {BOUGHT} WHERE city = '{city}' AND day LIKE '{year}-%' "
        "GROUP BY category ORDER BY 1",
    )


def _both(draw: Draw, shop: Shop) -> Question:
    first, second = (product[1] for product in draw.sample(shop.products, 2))
    bought = f"SELECT customer.name FROM {BOUGHT} WHERE product.name = "
    return Question(
        f"Which customers have bought both the {first} and the {second}?",
        f"{bought}{_literal(first)} INTERSECT {bought}{_literal(second)}",
    )


def _never(draw: Draw, shop: Shop) -> Question:
    city = draw.choice(shop.cities)
    return Question(
        f"Which products have never been bought by a customer from {city}?",
        "SELECT name FROM product WHERE id NOT IN "
        f"(SELECT product_id FROM {BOUGHT} WHERE city = '{city}') ORDER BY name",
    )


def _mean_purchase(draw: Draw, shop: Shop) -> Question:
    city, year = draw.choice(shop.cities), draw.choice(YEARS)
    return Question(
        f"What is the average value of a purchase by customers from {city} in {year}, rounded to two decimals?",
        f"SELECT ROUND(AVG(total), 2) FROM (SELECT {_EUROS} AS total FROM {BOUGHT} "
        f"WHERE city = '{city}' AND day LIKE '{year}-%' GROUP BY purchase.id)",
    )


def _best_month(draw: Draw, shop: Shop) -> Question:
    year, name = draw.choice(YEARS), draw.choice(["", *_THINGS])
    what, only = (f" of the category {name}", f" AND category = '{name}'") if name else ("", "")
    return Question(
        f"In which month of {year} were the sales{what} highest (as YYYY-MM), and how high were they?",
        f"SELECT SUBSTR(day, 1, 7), {_EUROS} FROM {SPENT} WHERE day LIKE '{year}-%'{only} GROUP BY 1 ORDER BY 2 DESC",
        top=1,
    )


QUESTIONS: dict[int, tuple[Callable[[Draw, Shop], Question], ...]] = {
    1: (_joined, _price, _cheaper, _count_joined, _people_of),
    2: (_spent, _buyers, _units, _purchases_of, _best_category),
    3: (_best_customers, _units_by_category, _both, _never, _mean_purchase, _best_month),
}
