//! Chromium without a window, driven over two pipes by its DevTools protocol.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a start, a page or an answer may take on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a page is watched for requests behind its load event.
const SETTLED: Duration = Duration::from_millis(300);

/// A page at a size and in a colour scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// CSS pixels.
    pub(crate) width: u32,
    pub(crate) is_dark: bool,
}

/// What a page said and asked for while it was opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opened {
    /// Lines of the console and exceptions.
    pub(crate) console: Vec<String>,
    /// Addresses beside its own.
    pub(crate) requests: Vec<String>,
}

/// A browser of its own: new profile, no network, ended with its owner.
pub(crate) struct Browser {
    child: Child,
    stdin: ChildStdin,
    messages: Receiver<Value>,
    events: Vec<Value>,
    /// Of the one tab.
    session: Option<String>,
    sent: u64,
    _home: TempDir,
}

impl Browser {
    /// Starts the browser that `FERROFLASH_CHROMIUM` names, else `chromium`.
    pub(crate) fn start() -> Browser {
        let program = std::env::var_os("FERROFLASH_CHROMIUM").unwrap_or_else(|| "chromium".into());
        let home = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("sh");
        // It reads messages from 3 and writes them to 4.
        command.args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"]).arg(&program);
        command.args([
            "--remote-debugging-pipe",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
        ]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND"]);
        command.arg(format!("--user-data-dir={}", home.path().join("profile").display()));
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_CACHE_HOME");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("a shell starts");
        let (stdin, stdout) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(stdout).split(0) {
                let Ok(message) = message else { return };
                let message = serde_json::from_slice(&message).expect("the browser answers in JSON");
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Browser { child, stdin, messages, events: Vec::new(), session: None, sent: 0, _home: home };
        let tab = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": tab["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Network", "Log", "Runtime"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Opens a file at a size; how tall the window is does not matter to these pages.
    pub(crate) fn open(&mut self, file: &Path, view: View) -> Opened {
        let size = json!({ "width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if view.is_dark { "dark" } else { "light" };
        let features = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", features);
        self.events.clear();
        let address = format!("file://{}", file.display());
        let begun = self.call("Page.navigate", json!({ "url": address }));
        assert_eq!(begun["errorText"], Value::Null, "{address}");
        self.until(|event| event["method"] == "Page.loadEventFired");
        self.settle();
        let mut opened = Opened::default();
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" if params["request"]["url"] != address.as_str() => {
                    opened.requests.push(params["request"]["url"].to_string());
                }
                "Log.entryAdded" => opened.console.push(params["entry"]["text"].to_string()),
                "Runtime.consoleAPICalled" => opened.console.push(params["args"].to_string()),
                "Runtime.exceptionThrown" => opened.console.push(params["exceptionDetails"].to_string()),
                _ => {}
            }
        }
        opened
    }

    /// The value of an expression on the page, as JSON.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", asked);
        assert_eq!(answer["exceptionDetails"], Value::Null, "the script that looks at the page failed");
        answer["result"]["value"].take()
    }

    /// The whole page as a picture, for a person to look at.
    pub(crate) fn picture(&mut self, file: PathBuf) {
        let asked = json!({ "format": "png", "captureBeyondViewport": true });
        let picture = self.call("Page.captureScreenshot", asked);
        let text = picture["data"].as_str().expect("a picture");
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        std::fs::write(file, from_base64(text)).expect("written");
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({ "id": self.sent, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let text = format!("{message}\0");
        let written = self.stdin.write_all(text.as_bytes()).and_then(|()| self.stdin.flush());
        written.expect("the browser runs (FERROFLASH_CHROMIUM names it)");
        let id = self.sent;
        let mut answer = self.until(|message| message["id"] == id);
        assert_eq!(answer["error"], Value::Null, "{method}");
        answer["result"].take()
    }

    /// Waits for a message; keeps the events before it.
    fn until(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => panic!("the browser does not answer"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the browser ended, or there is none (FERROFLASH_CHROMIUM names it)")
                }
            };
            let found = is_it(&message);
            if message.get("method").is_some() {
                self.events.push(message.clone());
            }
            if found {
                return message;
            }
        }
    }

    fn settle(&mut self) {
        while let Ok(message) = self.messages.recv_timeout(SETTLED) {
            self.events.push(message);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its own processes end with it: asked first, since a kill leaves them a moment.
        let _ = self.stdin.write_all(b"{\"id\":0,\"method\":\"Browser.close\"}\0");
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// RFC 4648, which pictures come in.
fn from_base64(text: &str) -> Vec<u8> {
    let value = |letter: u8| match letter {
        b'A'..=b'Z' => Some(letter - b'A'),
        b'a'..=b'z' => Some(letter - b'a' + 26),
        b'0'..=b'9' => Some(letter - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0);
    for six in text.bytes().filter_map(value) {
        bits = (bits << 6) | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
