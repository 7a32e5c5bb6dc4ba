//! Documents that repeat what the code says are compared with it.
//!
//! `TASUKI_UPDATE_DOCS=1 ./test documents` writes them anew.

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
        std::fs::write(&path, &expected).expect("the document can be written");
        return;
    }
    assert!(
        found == expected,
        "{file} no longer says what the code says; TASUKI_UPDATE_DOCS=1 ./test documents writes it anew"
    );
}

/// What stands between two marks is ours; what stands around it is left alone.
fn with_section(document: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = document.split_once(&begin).expect("the section begins");
    let (_, after) = rest.split_once(&end).expect("the section ends");
    format!("{before}{begin}\n{text}\n{end}{after}")
}

#[test]
fn the_table_in_architecture_is_the_table_in_the_code() {
    compare("ARCHITECTURE.md", |document| {
        with_section(document, "transitions", &transition::markdown())
    });
}

#[test]
fn the_settings_page_is_the_settings_in_the_code() {
    compare("docs/reference/settings.md", |_| settings::markdown());
}
