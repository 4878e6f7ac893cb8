"""Write docs/images/web_*.webp: the web demo on detection, in headless Chromium.

Needs `pip install '.[test]'`, and Debian's packages chromium and chromium-driver.
"""

import io
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTHS = (1400, 800)
PORT = 7899
ADDRESS = f"http://127.0.0.1:{PORT}/"
SEED = 10  # of the picture: five shapes
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
DONE = """
const rows = document.querySelectorAll('#comparison tbody tr').length;
const waiting = document.querySelectorAll('#comparison tr.waiting').length;
return rows === 4 && !waiting && !!document.querySelector('#drawn img')?.complete;
"""
SET_SEED = """
const input = document.querySelector('#seed input');
Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, arguments[0]);
input.dispatchEvent(new Event('input', {bubbles: true}));
"""


def wait_for_the_server() -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(ADDRESS, timeout=10).close()
        except urllib.error.URLError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(ADDRESS)


def browser(folder: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def resize(driver: webdriver.Chrome, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def take(driver: webdriver.Chrome, width: int) -> None:
    """The whole page, as high as it is."""
    resize(driver, width, 900)
    driver.get(ADDRESS)
    WebDriverWait(driver, 120).until(lambda d: d.execute_script(DONE))
    driver.execute_script(SET_SEED, SEED)
    time.sleep(2)  # the new run begins
    WebDriverWait(driver, 120).until(lambda d: d.execute_script(DONE))
    resize(driver, width, driver.execute_script("return document.documentElement.scrollHeight"))
    time.sleep(1)
    path = IMAGES / f"web_{width}.webp"
    Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB").save(path, quality=85)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    command = [sys.executable, "examples/web_demo", f"--port={PORT}"]
    server = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for_the_server()
        with tempfile.TemporaryDirectory() as folder:
            driver = browser(folder)
            for width in WIDTHS:
                take(driver, width)
            driver.quit()
    finally:
        server.send_signal(signal.SIGINT)  # as Ctrl-C
        server.wait()


if __name__ == "__main__":
    main()
