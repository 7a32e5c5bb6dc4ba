//! The reference page of settings, made from their definitions.

use std::fmt::Write as _;

use super::{RULES, Settings};

/// The page as it stands in `docs/reference/settings.md`.
pub fn markdown() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         How a cluster behaves. Settings live in the database and are checked one by one and together.\n\
         This page is made from the code; a test compares the two.\n\n\
         | setting | default | from | to | what it does | 説明 |\n\
         |---|---|---|---|---|---|\n",
    );
    for one in Settings::definitions() {
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} |",
            one.name, one.default, one.min, one.max, one.english, one.japanese
        )
        .expect("a string takes all");
    }
    page.push_str("\n## Rules between settings\n\n");
    for rule in RULES {
        let marked = |text: &str| text.replace(['{', '}'], "`");
        writeln!(page, "- {}.\n  {}。", marked(rule.english), marked(rule.japanese))
            .expect("a string takes all");
    }
    page
}
