//! Compares documents that are generated from the code with the code.
//!
//! `TASUKI_UPDATE_DOCS=1 ./test documents` updates them.

use std::path::{Path, PathBuf};

use tasuki_core::run::transition;
use tasuki_core::settings;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn compare(file: &str, expected: impl Fn(&str) -> String) {
    let path = root().join(file);
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let expected = expected(&found);
    if std::env::var_os("TASUKI_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).expect("the document is writable");
        return;
    }
    assert!(
        found == expected,
        "{file} differs from the code; run TASUKI_UPDATE_DOCS=1 ./test documents to update it"
    );
}

/// Replaces the text between the two markers of a section and keeps the rest of the document.
fn replace_section(document: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = document.split_once(&begin).expect("the begin marker exists");
    let (_, after) = rest.split_once(&end).expect("the end marker exists");
    format!("{before}{begin}\n{text}\n{end}{after}")
}

#[test]
fn the_transition_table_in_architecture_md_matches_the_code() {
    compare("ARCHITECTURE.md", |document| {
        replace_section(document, "transitions", &transition::transition_table_markdown())
    });
}

#[test]
fn the_settings_page_matches_the_code() {
    compare("docs/reference/settings.md", |_| settings::reference_markdown());
}
