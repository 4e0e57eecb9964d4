"""How a model is divided into blocks, and what each group of clients uploads."""

from rich.table import Table

from fedapp.models.layout import Layout, divide


def blocks_table(layout: Layout, count: int) -> Table:
    """Lay out a model's division: numbers, the share of the model, and the upload of each group."""
    division = divide(layout, count)
    shared = layout.head
    table = Table("block", "parameters", "of the model", "its group uploads", "of the model")
    uploads = []
    for number, block in enumerate(division.blocks, 1):
        size = block.stop - block.start
        uploads.append(size + shared)
        table.add_row(str(number), *_cells(size, layout.size), *_cells(uploads[-1], layout.size))
    table.add_row("shared", *_cells(shared, layout.size), "", "")
    mean = sum(uploads) / count
    table.add_row(
        "all",
        f"{layout.size:,}",
        "100.0 %",
        f"{mean:,.0f} on average",
        f"{100 * mean / layout.size:.1f} %",
    )
    return table


def _cells(size: int, whole: int) -> tuple[str, str]:
    return f"{size:,}", f"{100 * size / whole:.1f} %"
