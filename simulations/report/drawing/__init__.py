"""Figures as data: a chart holds series. ``still`` draws it as SVG, a browser by its own script."""
