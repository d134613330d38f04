"""What the site needs beyond Sphinx: navigation, pages of code, notebooks, pictures, generated
reference.
"""
