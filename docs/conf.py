"""The site, for Sphinx: `make docs` builds it, `make docs-serve` shows it, `make docs-linkcheck` tries foreign links."""

import gc
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import kiln  # noqa: E402

# Trees of documents live long. Fewer searches for garbage, and the stems that kiln_search keeps, take a whole build from
# 86 to 64 s of processor time.
gc.set_threshold(100_000, 50, 100)

project, author = "Kiln", "the Kiln authors"
version = release = kiln.__version__
html_title = "Kiln"
smartquotes = False

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinxarg.ext",
    "kiln_fences",
    "kiln_files",
    "kiln_api",
    "kiln_commands",
    "kiln_gallery",
    "kiln_knowledge",
    "kiln_playground",
    "kiln_search",
]
exclude_patterns = ["_ext", "_playground", "_static", "figures", "reference/examples", "knowledge/cases"]
suppress_warnings = [
    "ref.python"  # a type in a signature that several modules have
]

# MyST: headings get anchors as on GitHub, so that the links of a page work in both places.
myst_enable_extensions = ["colon_fence", "attrs_block", "attrs_inline", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Cells of lessons and notebooks are run by the tests, which compare the outputs that stand in the files.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_typehints = "none"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 800  # a parameter on a line of its own makes 20 lines of `gemm`
add_module_names = False

copybutton_selector = "div:not(.highlight-output):not(.highlight-refused):not(.cell_output) > div.highlight pre"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["kiln.css"]
html_favicon = "_static/kiln.svg"
html_use_index = False
html_show_sourcelink = True
html_copy_source = True
html_sidebars = {"index": [], "faq": [], "platforms": [], "release-notes": [], "gallery": [], "playground": []}
html_theme_options = {
    "logo": {
        "text": "Kiln",
        "alt_text": "Kiln, front page",
        "image_light": "_static/kiln.svg",
        "image_dark": "_static/kiln.svg",
    },
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "collapse_navigation": True,  # a whole tree on every page takes long to build
    "navigation_depth": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc", "sourcelink"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copyright = "the Kiln authors, Apache-2.0"
linkcheck_ignore = [r"(\.\./)*[\w/-]*\.html"]  # pages of the site
linkcheck_timeout = 15
linkcheck_retries = 2
