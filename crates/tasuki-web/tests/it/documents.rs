//! Compares stored documents with the code.
//!
//! `TASUKI_UPDATE_DOCS=1 ./test documents` writes the generated ones.

use std::path::{Path, PathBuf};

use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_stored_openapi_document_is_up_to_date() {
    let path = root().join("crates/tasuki-web/openapi.json");
    let expected = tasuki_web::build_openapi_text();
    if std::env::var_os("TASUKI_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "openapi.json is outdated; run TASUKI_UPDATE_DOCS=1 ./test documents"
    );
}

/// Every operation has an id, a summary and its common error responses, because tools and readers rely on them.
#[test]
fn every_operation_is_documented_completely() {
    let document: Value = serde_json::from_str(&tasuki_web::build_openapi_text()).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let has_response = |status: &str| operation["responses"].get(status).is_some();
            assert!(operation["operationId"].is_string(), "{method} {path}");
            assert!(operation["summary"].is_string(), "{method} {path}");
            if path.starts_with("/api/") {
                assert!(
                    ["401", "403", "408", "500", "503"].iter().all(|status| has_response(status)),
                    "{method} {path}"
                );
            }
            if operation.get("requestBody").is_some() {
                assert!(
                    ["400", "413", "415", "422"].iter().all(|status| has_response(status)),
                    "{method} {path}"
                );
            }
            assert!(has_response("404") || !path.contains('{'), "{method} {path}");
        }
    }
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        if schema.get("properties").is_some() {
            assert_eq!(schema["additionalProperties"], false, "{name}");
        }
    }
}

#[test]
fn the_errors_page_has_a_section_for_every_code() {
    let page = std::fs::read_to_string(root().join("docs/reference/errors.md")).unwrap();
    let sections: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let codes: Vec<&str> = tasuki_web::CODES.iter().map(|code| code.code).collect();
    assert_eq!(sections, codes);
    for code in tasuki_web::CODES {
        let line = format!("## {}\n\n*{} {}.*\n", code.code, code.status, code.title);
        assert!(page.contains(&line), "{line}");
    }
}
