// Copies to the clipboard. This also works on a page that the browser calls insecure, such as a ComfyUI on another
// machine over HTTP.

import { element } from './elements.mjs'

export async function copyToClipboard(text) {
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    const area = element('textarea', { style: 'position: fixed; opacity: 0' })
    area.value = text
    const focused = document.activeElement
    document.body.append(area)
    area.select()
    document.execCommand('copy')
    area.remove()
    focused?.focus()
  }
}

const COPIED_MS = 2000

/** Makes a button copy what `read` returns. words: the button's text before a click, and for a moment after it. */
export function copyOnClick(button, read, words) {
  button.addEventListener('click', async () => {
    await copyToClipboard(read())
    button.textContent = words.copied
    setTimeout(() => {
      button.textContent = words.copy
    }, COPIED_MS)
  })
}
