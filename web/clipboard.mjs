// The clipboard, also on a page that a browser takes for insecure, which ComfyUI on another machine is.

import { element } from './elements.mjs'

export async function toClipboard(text) {
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

/** Has a button copy what `read` gives, and say so for a moment. words: what it says before and after. */
export function copiesOnClick(button, read, words) {
  button.addEventListener('click', async () => {
    await toClipboard(read())
    button.textContent = words.copied
    setTimeout(() => {
      button.textContent = words.copy
    }, COPIED_MS)
  })
}
