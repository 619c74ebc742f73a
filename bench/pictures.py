"""pictures.py - a small SVG writer, for the pictures of the documents.

A picture is legible or is not written: svg() raises if two texts overlap, if one is smaller than
12 px (a page may show the card a little smaller) or leaves the card.  Text widths are estimated, on
the wide side.  The card is opaque, so that a picture reads the same on a light and on a dark page;
the colours are told apart by the colour-blind, too (Okabe and Ito's, darkened to be read as text).
"""
from xml.sax.saxutils import escape

WIDTH = 860  # of the documents' column, pixels
OURS, CUDNN, FA3, LIMIT = "#0072b2", "#b34a00", "#00795a", "#6b7280"
PURPLE, GOLD = "#a3386f", "#8a6100"
INK, FAINT, CARD = "#1f2328", "#d8dee4", "#ffffff"
SMALLEST = 12


class Drawing:
    def __init__(self, height, title, width=WIDTH):
        self.width, self.height, self.title = width, height, title
        self.parts, self.boxes = [], []

    def add(self, element, body=None, **attributes):
        words = " ".join(f'{k.rstrip("_").replace("_", "-")}="{number(v)}"'
                         for k, v in attributes.items() if v is not None)
        self.parts.append(f"<{element} {words}/>" if body is None else
                          f"<{element} {words}>{escape(body)}</{element}>")

    def line(self, x1, y1, x2, y2, colour=INK, width=1, dash=None):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=colour, stroke_width=width,
                 stroke_dasharray=dash)

    def polyline(self, points, colour, width=2, dash=None):
        self.add("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points),
                 fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dash,
                 stroke_linejoin="round")

    def rect(self, x, y, w, h, fill, stroke=None, radius=None, opacity=None):
        self.add("rect", x=x, y=y, width=w, height=h, fill=fill, stroke=stroke, rx=radius,
                 fill_opacity=opacity)

    def dot(self, x, y, colour, radius=2.5):
        self.add("circle", cx=x, cy=y, r=radius, fill=colour)

    def text(self, x, y, words, size=12, colour=INK, anchor="start", bold=False):
        """y: the baseline.  anchor: start, middle or end of the words is at x."""
        words = str(words)
        wide = text_width(words, size, bold)
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        self.boxes.append((left, y - 0.78 * size, left + wide, y + 0.22 * size, words, size))
        self.add("text", words, x=x, y=y, font_size=size, fill=colour,
                 text_anchor=None if anchor == "start" else anchor,
                 font_weight="bold" if bold else None)

    def faults(self):
        """What cannot be read: empty if everything can."""
        found = []
        for i, (left, top, right, bottom, words, size) in enumerate(self.boxes):
            if size < SMALLEST:
                found.append(f"'{words}' is smaller than {SMALLEST} px")
            if left < 0 or top < 0 or right > self.width or bottom > self.height:
                found.append(f"'{words}' leaves the card")
            for l, t, r, b, other, _ in self.boxes[:i]:
                if left < r and l < right and top < b and t < bottom:
                    found.append(f"'{words}' lies on '{other}'")
        return found

    def svg(self):
        if self.faults():
            raise ValueError(f"{self.title}: " + "; ".join(self.faults()))
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
                f'height="{number(self.height)}" '
                f'viewBox="0 0 {self.width} {number(self.height)}" '
                'font-family="Helvetica, Arial, sans-serif" role="img">\n'
                f"<title>{escape(self.title)}</title>\n"
                f'<rect x="0.5" y="0.5" width="{self.width - 1}" '
                f'height="{number(self.height - 1)}" rx="6" fill="{CARD}" stroke="{FAINT}"/>\n')
        return head + "\n".join(self.parts) + "\n</svg>\n"


def number(x):
    return x if isinstance(x, str) else f"{x:.2f}".rstrip("0").rstrip(".")


def text_width(words, size, bold=False):
    narrow = sum(c in "iljtfrI.,:;|!'() " for c in words)
    return size * (0.62 * (len(words) - narrow) + 0.32 * narrow) * (1.06 if bold else 1)


def spread(places, gap, low, high):
    """Places moved apart to at least `gap`, within low .. high, in their order, as little as the
    order allows."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    excess = moved[-1] - high if moved else 0
    if excess > 0:
        moved[-1] -= excess
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    if moved and moved[0] < low:
        moved = [max(y, low + i * gap) for i, y in enumerate(moved)]
    result = [0.0] * len(places)
    for place, i in zip(moved, order):
        result[i] = place
    return result


class Panel:
    """Axes of one small chart.  x runs over equally spaced names, y from 0 to `top`."""

    def __init__(self, drawing, left, upper, width, height, names, top, step, heading):
        self.d, self.left, self.upper, self.width, self.height = drawing, left, upper, width, height
        self.count, self.top = len(names), top
        drawing.text(left, upper - 10, heading, 13, bold=True)
        for value in range(0, top + 1, step):
            drawing.line(left, self.y(value), left + width, self.y(value), FAINT)
            drawing.text(left - 5, self.y(value) + 4, value, 12, LIMIT, "end")
        for i, name in enumerate(names):
            drawing.text(self.x(i), upper + height + 16, name, 12, LIMIT, "middle")

    def x(self, i):
        return self.left + self.width * (i + 0.35) / (self.count - 0.3)

    def y(self, value):
        return self.upper + self.height * (1 - value / self.top)

    def lines(self, curves):
        """curves: (name, colour, dash, values); None where nothing was measured.  The name and the
        last value stand where the line ends."""
        ends = []
        for name, colour, dash, values in curves:
            points = [(self.x(i), self.y(v)) for i, v in enumerate(values) if v is not None]
            self.d.polyline(points, colour, 1.3 if dash == "2 3" else 2, dash)
            for x, y in points if dash is None else []:
                self.d.dot(x, y, colour)
            ends.append((points[-1][1], f"{name} {values[-1]:.0f}", colour))
        places = spread([e[0] + 4 for e in ends], 13.5, self.upper + 8,
                        self.upper + self.height + 4)
        for y, (_, words, colour) in zip(places, ends):
            self.d.text(self.x(self.count - 1) + 8, y, words, 12, colour, bold=colour == OURS)
