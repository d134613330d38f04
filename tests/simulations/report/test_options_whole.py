"""Options of commands in the sentences of a page."""

from fedlsg.simulations.report.pages.template import options_whole


def test_no_browser_breaks_an_option_and_text_stays_text():
    words = options_whole("<b>x</b>: resume RUN --rounds 200 --out-dir a--b")
    assert words == (
        "&lt;b&gt;x&lt;/b&gt;: resume RUN <span class='option'>--rounds</span> 200 "
        "<span class='option'>--out-dir</span> a--b"
    )
