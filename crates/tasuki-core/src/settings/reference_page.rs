//! Generates the reference page of the settings from their definitions.

use std::fmt::Write as _;

use super::{RULES, Settings};

/// The content of `docs/reference/settings.md`.
pub fn reference_markdown() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         Settings control the behaviour of a cluster. They are stored in the database. Each setting has a minimum and a\n\
         maximum. The rules below compare settings with each other. This page is generated from the code; a test fails if\n\
         the page differs from the code.\n\n\
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
    page.push_str("\n## Rules between settings / 設定間の規則\n\n");
    for rule in RULES {
        let as_code = |text: &str| text.replace(['{', '}'], "`");
        writeln!(page, "- {}.\n  {}。", as_code(rule.english), as_code(rule.japanese))
            .expect("writing to a string cannot fail");
    }
    page
}
