//! Options that select the API server and its token: flags, environment variables, or the file `api.json` that a running
//! node (`tasuki up` or `tasuki node`) writes into its data directory.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use reqwest::Url;
use serde_json::Value;

use crate::client::{ApiClient, block_on};
use crate::failure::Failure;
use crate::view::OutputStyle;

/// File in the data directory with URL and token of the running server, readable by its owner only.
pub(crate) const API_FILE: &str = "api.json";

/// The options of every command that uses the REST API.
#[derive(Args)]
pub(crate) struct ApiServerFlags {
    /// URL of the server [default: the server that runs in the data directory]
    #[arg(
        long,
        env = "TASUKI_URL",
        hide_env_values = true,
        value_name = "URL",
        global = true,
        help_heading = "Server"
    )]
    url: Option<String>,

    /// File that contains the API token; the variable TASUKI_TOKEN can contain the token itself [default: the token in
    /// the data directory]
    // There is no flag for the token itself: it would be visible in the process list.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    token_file: Option<PathBuf>,

    /// Data directory of a `tasuki up` or `tasuki node` on this machine
    #[arg(
        long,
        env = "TASUKI_DATA",
        hide_env_values = true,
        value_name = "DIR",
        default_value = "./tasuki-data",
        global = true,
        help_heading = "Server"
    )]
    data: PathBuf,

    /// Print the response of the server as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl ApiServerFlags {
    /// Creates the client and runs `work` with it and with the output style.
    pub(crate) fn with_client(
        &self,
        now: Timestamp,
        work: impl AsyncFnOnce(&ApiClient, &OutputStyle) -> Result<String, Failure>,
    ) -> Result<String, Failure> {
        let client = self.client()?;
        block_on(work(&client, &OutputStyle::new(now, self.json)))
    }

    /// Creates a client for the selected server, or explains which option is missing.
    fn client(&self) -> Result<ApiClient, Failure> {
        let explicit_url = self.url.as_deref().filter(|url| !url.trim().is_empty());
        let explicit_token = self.explicit_token()?;
        let (url, token) = match (explicit_url, explicit_token) {
            (Some(url), Some(token)) => (parse_url(url)?, token),
            (Some(url), None) => {
                let url = parse_url(url)?;
                let token = self.data_dir_token(&url)?;
                (url, token)
            }
            (None, explicit_token) => {
                let (url, found) = self.read_api_file()?;
                (url, explicit_token.unwrap_or(found))
            }
        };
        ApiClient::new(url, &token, self.json)
    }

    fn explicit_token(&self) -> Result<Option<String>, Failure> {
        if let Some(file) = &self.token_file {
            let text = fs::read_to_string(file).map_err(|error| {
                Failure::bad_usage(format!("cannot read the token in {}: {error}", file.display()))
            })?;
            return match text.trim() {
                "" => {
                    Err(Failure::bad_usage(format!("the token file {} is empty", file.display())))
                }
                token => Ok(Some(token.to_owned())),
            };
        }
        let token = env::var("TASUKI_TOKEN").unwrap_or_default();
        Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
    }

    /// Returns the token in the data directory, but only for the server that the same file names.
    fn data_dir_token(&self, url: &Url) -> Result<String, Failure> {
        match self.read_api_file() {
            Ok((found, token)) if found.origin() == url.origin() => Ok(token),
            _ => Err(Failure::bad_usage(format!("there is no token for {url}"))
                .hint("set TASUKI_TOKEN, or store the token in a file and pass --token-file FILE")),
        }
    }

    fn read_api_file(&self) -> Result<(Url, String), Failure> {
        let file = self.data.join(API_FILE);
        let text = fs::read_to_string(&file).map_err(|error| cannot_read(&file, &error))?;
        // A process that was killed leaves its file behind; another program may listen at that address by now.
        if is_unlocked(&self.data.join("lock")) {
            return Err(cannot_read(&file, &ErrorKind::NotFound.into()));
        }
        let broken = || {
            Failure::new(format!("{} does not contain a URL and a token", file.display()))
                .hint("restart the node, which writes the file again")
        };
        let found: Value = serde_json::from_str(&text).map_err(|_| broken())?;
        let url = found["url"].as_str().ok_or_else(broken)?;
        let token = found["token"].as_str().ok_or_else(broken)?;
        Ok((parse_url(url)?, token.to_owned()))
    }
}

/// Whether the lock file of a data directory exists and no process holds the lock.
fn is_unlocked(lock: &Path) -> bool {
    let free =
        |file| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok();
    fs::File::open(lock).is_ok_and(free)
}

fn cannot_read(file: &Path, error: &std::io::Error) -> Failure {
    let directory = file.parent().unwrap_or(file).display();
    match error.kind() {
        ErrorKind::NotFound => Failure::new(format!("no server is running with data directory {directory}"))
            .hint("start one with `tasuki up`, or select another server with --url or TASUKI_URL"),
        ErrorKind::PermissionDenied => {
            Failure::new(format!("cannot read {}: {error}", file.display()))
                .hint("the file belongs to the user who started tasuki; set TASUKI_URL and a token of your own in TASUKI_TOKEN")
        }
        _ => Failure::new(format!("cannot read {}: {error}", file.display())),
    }
}

fn parse_url(input: &str) -> Result<Url, Failure> {
    let refuse = || {
        Failure::bad_usage(format!("{input:?} is not the URL of a server"))
            .hint("a URL is http://HOST:PORT or https://HOST")
    };
    let url = Url::parse(input.trim()).map_err(|_| refuse())?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        _ => Err(refuse()),
    }
}
