//! Where the server is and who we are to it: flags, environment, or what `tasuki up` left in its
//! data directory.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use reqwest::Url;
use serde_json::Value;

use crate::client::{Client, in_one_thread};
use crate::output::Failure;
use crate::view::Look;

/// What `tasuki up` writes into its data directory, readable to its owner alone.
pub(crate) const API_FILE: &str = "api.json";

/// How to reach the server. Every noun that goes through REST takes these.
#[derive(Args)]
pub(crate) struct Server {
    /// The server's address [default: what runs in the data directory]
    #[arg(
        long,
        env = "TASUKI_URL",
        hide_env_values = true,
        value_name = "URL",
        global = true,
        help_heading = "Server"
    )]
    url: Option<String>,

    /// A file that holds the token; TASUKI_TOKEN can hold the token itself [default: the one in the
    /// data directory]
    // There is no flag for the token itself: whoever lists processes would read it.
    #[arg(long, value_name = "FILE", global = true, help_heading = "Server")]
    token_file: Option<PathBuf>,

    /// The data directory of a `tasuki up` on this machine
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

    /// Print the server's JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Server {
    /// Asks the server that is meant, and shows what it says the way that is wanted.
    pub(crate) fn ask(
        &self,
        now: Timestamp,
        work: impl AsyncFnOnce(&Client, &Look) -> Result<String, Failure>,
    ) -> Result<String, Failure> {
        let client = self.client()?;
        in_one_thread(work(&client, &Look::new(now, self.json)))
    }

    /// A client for the server that is meant, or what is missing to reach it.
    fn client(&self) -> Result<Client, Failure> {
        let typed_url = self.url.as_deref().filter(|url| !url.trim().is_empty());
        let typed_token = self.typed_token()?;
        let (url, token) = match (typed_url, typed_token) {
            (Some(url), Some(token)) => (address(url)?, token),
            (Some(url), None) => {
                let url = address(url)?;
                let token = self.token_for(&url)?;
                (url, token)
            }
            (None, typed_token) => {
                let (url, found) = self.found()?;
                (url, typed_token.unwrap_or(found))
            }
        };
        Client::new(url, &token, self.json)
    }

    fn typed_token(&self) -> Result<Option<String>, Failure> {
        if let Some(file) = &self.token_file {
            let text = fs::read_to_string(file).map_err(|error| {
                Failure::bad_usage(format!("cannot read the token in {}: {error}", file.display()))
            })?;
            return match text.trim() {
                "" => Err(Failure::bad_usage(format!("{} holds no token", file.display()))),
                token => Ok(Some(token.to_owned())),
            };
        }
        let token = env::var("TASUKI_TOKEN").unwrap_or_default();
        Ok(Some(token.trim().to_owned()).filter(|token| !token.is_empty()))
    }

    /// The token in the data directory is for the server it names, and is shown to no other.
    fn token_for(&self, url: &Url) -> Result<String, Failure> {
        match self.found() {
            Ok((found, token)) if found.origin() == url.origin() => Ok(token),
            _ => Err(Failure::bad_usage(format!("there is no token for {url}"))
                .hint("put it into TASUKI_TOKEN, or into a file and name that with --token-file")),
        }
    }

    fn found(&self) -> Result<(Url, String), Failure> {
        let file = self.data.join(API_FILE);
        let text = fs::read_to_string(&file).map_err(|error| unread(&file, &error))?;
        // One that was killed left its address behind, and anybody may listen there by now.
        if is_left(&self.data.join("lock")) {
            return Err(unread(&file, &ErrorKind::NotFound.into()));
        }
        let broken = || {
            Failure::refused(format!("{} does not hold an address and a token", file.display()))
                .hint("tasuki up writes it anew")
        };
        let found: Value = serde_json::from_str(&text).map_err(|_| broken())?;
        let url = found["url"].as_str().ok_or_else(broken)?;
        let token = found["token"].as_str().ok_or_else(broken)?;
        Ok((address(url)?, token.to_owned()))
    }
}

/// Whether a data directory has a lock that nobody holds.
fn is_left(lock: &Path) -> bool {
    let free =
        |file| rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared).is_ok();
    fs::File::open(lock).is_ok_and(free)
}

fn unread(file: &Path, error: &std::io::Error) -> Failure {
    let folder = file.parent().unwrap_or(file).display();
    match error.kind() {
        ErrorKind::NotFound => Failure::refused(format!("nothing runs in {folder}"))
            .hint("tasuki up starts it; --url or TASUKI_URL name a server elsewhere"),
        ErrorKind::PermissionDenied => {
            Failure::refused(format!("cannot read {}: {error}", file.display()))
                .hint("it belongs to whoever ran tasuki up; a token of your own goes into TASUKI_TOKEN, with TASUKI_URL")
        }
        _ => Failure::refused(format!("cannot read {}: {error}", file.display())),
    }
}

fn address(typed: &str) -> Result<Url, Failure> {
    let refuse = || {
        Failure::bad_usage(format!("{typed:?} is not the address of a server"))
            .hint("an address is http://HOST:PORT or https://HOST")
    };
    let url = Url::parse(typed.trim()).map_err(|_| refuse())?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        _ => Err(refuse()),
    }
}
