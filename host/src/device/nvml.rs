//! Clocks and the driver's version from NVML, where its library is installed. Everything here is optional.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::NonNull;

/// What NVML says of one device. A field that it cannot tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Reading {
    /// The driver's version, `580.159.03`.
    pub driver: Option<String>,
    /// SM clock now, in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// The highest SM clock, in MHz.
    pub sm_clock_max_mhz: Option<u32>,
    /// Whether the SM clock is down for the device's power limit now.
    pub is_power_limited: Option<bool>,
    /// Memory clock now, in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Power drawn now, in W.
    pub power_w: Option<f64>,
    /// Temperature now, in °C.
    pub temperature_c: Option<u32>,
}

/// NVML, opened and initialised, and one device.
pub struct Nvml {
    library: NonNull<c_void>,
    device: *mut c_void,
}

const CLOCK_SM: c_uint = 1;
const CLOCK_MEMORY: c_uint = 2;
const TEMPERATURE_GPU: c_uint = 0;
/// Of what limits clocks: the power limit (`nvmlClocksEventReasonSwPowerCap`) and an external power brake
/// (`nvmlClocksThrottleReasonHwPowerBrakeSlowdown`).
const POWER_LIMITS: u64 = 0x4 | 0x80;
const SUCCESS: c_int = 0;

type DeviceNumber = unsafe extern "C" fn(*mut c_void, *mut c_uint) -> c_int;
type DeviceNumberOf = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_uint) -> c_int;

impl Nvml {
    /// Opens NVML for the device at a PCI address, `0000:65:00.0`. `None` where there is no NVML or it does not know the device.
    pub fn open(pci_bus_id: &str) -> Option<Nvml> {
        let bus_id = CString::new(pci_bus_id).ok()?;
        let library = open_library()?;
        let mut nvml = Nvml { library, device: std::ptr::null_mut() };
        // SAFETY: the names have these signatures in NVML since version 5; the strings end in NUL.
        unsafe {
            let init: unsafe extern "C" fn() -> c_int = nvml.call(c"nvmlInit_v2")?;
            let find: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int =
                nvml.call(c"nvmlDeviceGetHandleByPciBusId_v2")?;
            if init() != SUCCESS || find(bus_id.as_ptr(), &mut nvml.device) != SUCCESS {
                return None;
            }
        }
        Some(nvml)
    }

    /// What it says now.
    pub fn read(&self) -> Reading {
        Reading {
            driver: self.driver(),
            sm_clock_mhz: self.number_of(c"nvmlDeviceGetClockInfo", CLOCK_SM),
            sm_clock_max_mhz: self.number_of(c"nvmlDeviceGetMaxClockInfo", CLOCK_SM),
            is_power_limited: self.clock_limits().map(|limits| limits & POWER_LIMITS != 0),
            memory_clock_mhz: self.number_of(c"nvmlDeviceGetClockInfo", CLOCK_MEMORY),
            power_w: self.number(c"nvmlDeviceGetPowerUsage").map(|milliwatts| f64::from(milliwatts) / 1e3),
            temperature_c: self.number_of(c"nvmlDeviceGetTemperature", TEMPERATURE_GPU),
        }
    }

    fn driver(&self) -> Option<String> {
        let mut version = [0 as c_char; 96];
        // SAFETY: the call has this signature and writes no more than the length given, with a NUL.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int =
                self.call(c"nvmlSystemGetDriverVersion")?;
            (get(version.as_mut_ptr(), 96) == SUCCESS)
                .then(|| CStr::from_ptr(version.as_ptr()).to_string_lossy().into_owned())
        }
    }

    /// A bit for each thing that limits clocks now.
    fn clock_limits(&self) -> Option<u64> {
        let mut limits: c_ulonglong = 0;
        // SAFETY: the call has this signature since NVML 5; newer libraries have it beside its new name.
        unsafe {
            let get: unsafe extern "C" fn(*mut c_void, *mut c_ulonglong) -> c_int =
                self.call(c"nvmlDeviceGetCurrentClocksThrottleReasons")?;
            (get(self.device, &mut limits) == SUCCESS).then_some(limits)
        }
    }

    fn number(&self, name: &CStr) -> Option<u32> {
        let mut value = 0;
        // SAFETY: the callers name calls of this signature.
        unsafe {
            let get: DeviceNumber = self.call(name)?;
            (get(self.device, &mut value) == SUCCESS).then_some(value)
        }
    }

    fn number_of(&self, name: &CStr, kind: c_uint) -> Option<u32> {
        let mut value = 0;
        // SAFETY: the callers name calls of this signature.
        unsafe {
            let get: DeviceNumberOf = self.call(name)?;
            (get(self.device, kind, &mut value) == SUCCESS).then_some(value)
        }
    }

    /// A call by its exported name.
    ///
    /// # Safety
    /// `F` is a function pointer of the call's signature.
    unsafe fn call<F: Copy>(&self, name: &CStr) -> Option<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>(), "F is a function pointer");
        let address = symbol(self.library, name)?;
        // SAFETY: the caller's promise; both are pointers of one size.
        Some(unsafe { std::mem::transmute_copy::<NonNull<c_void>, F>(&address) })
    }
}

#[cfg(unix)]
fn open_library() -> Option<NonNull<c_void>> {
    const RTLD_NOW: c_int = 2;
    // SAFETY: the name ends in NUL; the library is the driver's own. It stays open, as NVML keeps state in it.
    NonNull::new(unsafe { dlopen(c"libnvidia-ml.so.1".as_ptr(), RTLD_NOW) })
}

#[cfg(unix)]
fn symbol(library: NonNull<c_void>, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the handle came from dlopen and stays open; the name ends in NUL.
    NonNull::new(unsafe { dlsym(library.as_ptr(), name.as_ptr()) })
}

// std links the library that defines these.
#[cfg(unix)]
unsafe extern "C" {
    fn dlopen(file_name: *const c_char, mode: c_int) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

#[cfg(not(unix))]
fn open_library() -> Option<NonNull<c_void>> {
    None
}

#[cfg(not(unix))]
fn symbol(_: NonNull<c_void>, _: &CStr) -> Option<NonNull<c_void>> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_none() {
        assert!(Nvml::open("ffff:ff:1f.7").is_none());
        assert!(Nvml::open("nul\0inside").is_none());
    }
}
