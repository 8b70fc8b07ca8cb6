//! Errors as codes, and the text of a thread's last one.

use ferroflash_call::error::{Code, Error};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Why a function of the header failed.
pub(crate) struct Failure {
    code: Code,
    text: String,
}

impl Failure {
    pub(crate) fn invalid(text: &str) -> Failure {
        Failure { code: Code::Invalid, text: text.to_owned() }
    }

    pub(crate) fn unsupported(text: &str) -> Failure {
        Failure { code: Code::Unsupported, text: text.to_owned() }
    }

    pub(crate) fn null(what: &str) -> Failure {
        Failure { code: Code::Invalid, text: format!("{what} is NULL") }
    }

    pub(crate) fn number(what: &str, value: i64, allowed: &str) -> Failure {
        Failure { code: Code::Invalid, text: format!("{what} is {value}, must be {allowed}") }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { code: error.code(), text: error.to_string() }
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a function's body; notes what fails. A panic is a fault of this library, and must not reach C.
pub(crate) fn code(body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        Err(Failure {
            code: Code::Failed,
            text: "a fault inside Ferroflash; stderr has its message".to_owned(),
        })
    });
    match result {
        Ok(()) => 0,
        Err(Failure { code, text }) => {
            let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
            LAST.with(|last| *last.borrow_mut() = text);
            code as i32
        }
    }
}

/// The text of the thread's last error.
pub(crate) fn text() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
