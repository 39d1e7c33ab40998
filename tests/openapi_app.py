"""A web application whose framework writes its OpenAPI document."""

from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field


class Line(BaseModel):
    item: str
    count: int = Field(1, ge=1)
    note: str | None = None


class Order(BaseModel):
    lines: list[Line]
    urgent: bool = False


app = FastAPI()


@app.post("/shops/{shop}/orders", status_code=201)
def place_order(shop: int, order: Order, dry: bool = False) -> dict[str, Any]:
    """Place an order."""
    if shop != 1:
        raise HTTPException(404, "there is no such shop")
    return {"items": sum(line.count for line in order.lines), "dry": dry, "urgent": order.urgent}
