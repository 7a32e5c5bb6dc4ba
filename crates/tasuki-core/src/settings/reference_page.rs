//! Generates the reference page of the settings from their definitions.

use std::fmt::Write as _;

use super::{RULES, Settings};

/// The content of `docs/reference/settings.md`.
pub fn reference_markdown() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         Settings control the behaviour of a cluster. They are stored in the database. Each value has limits, and some rules\n\
         compare several settings. This page is generated from the code, and a test compares the two.\n\n\
         | setting | default | from | to | what it does | 説明 |\n\
         |---|---|---|---|---|---|\n",
    );
    for setting in Settings::definitions() {
        writeln!(
            page,
            "| `{}` | {} | {} | {} | {} | {} |",
            setting.name,
            setting.default,
            setting.min,
            setting.max,
            setting.english,
            setting.japanese
        )
        .expect("writing to a string cannot fail");
    }
    page.push_str("\n## Rules between settings\n\n");
    for rule in RULES {
        let as_code = |text: &str| text.replace(['{', '}'], "`");
        writeln!(page, "- {}.\n  {}。", as_code(rule.english), as_code(rule.japanese))
            .expect("writing to a string cannot fail");
    }
    page
}
