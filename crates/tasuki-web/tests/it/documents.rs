//! Documents that repeat what the code says are compared with it.
//!
//! `TASUKI_UPDATE_DOCS=1 ./test documents` writes what can be written.

use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_stored_document_is_the_one_that_is_served() {
    let path = root().join("crates/tasuki-web/openapi.json");
    let expected = tasuki_web::openapi();
    if std::env::var_os("TASUKI_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "openapi.json no longer says what the code says; TASUKI_UPDATE_DOCS=1 ./test documents writes it anew"
    );
}

/// What the document says of every route, so that a tool or a reader can rely on it.
#[test]
fn the_document_says_everything_of_every_route() {
    let document: Value = serde_json::from_str(&tasuki_web::openapi()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let said = |status: &str| operation["responses"].get(status).is_some();
            assert!(operation["operationId"].is_string(), "{method} {path}");
            assert!(operation["summary"].is_string(), "{method} {path}");
            if path.starts_with("/api/") {
                assert!(
                    ["401", "403", "408", "500", "503"].iter().all(|status| said(status)),
                    "{method} {path}"
                );
            }
            if operation.get("requestBody").is_some() {
                assert!(
                    ["400", "413", "415", "422"].iter().all(|status| said(status)),
                    "{method} {path}"
                );
            }
            assert!(said("404") || !path.contains('{'), "{method} {path}");
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        if schema.get("properties").is_some() {
            assert_eq!(schema["additionalProperties"], false, "{name}");
        }
    }
}

#[test]
fn every_code_has_its_section_and_every_section_its_code() {
    let page = std::fs::read_to_string(root().join("docs/reference/errors.md")).unwrap();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let codes: Vec<&str> = tasuki_web::CODES.iter().map(|code| code.code).collect();
    assert_eq!(sections, codes);
    for code in tasuki_web::CODES {
        let line = format!("## {}\n\n*{} {}.*\n", code.code, code.status, code.title);
        assert!(page.contains(&line), "{line}");
    }
}
