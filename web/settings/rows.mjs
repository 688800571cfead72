// The control of each setting in ComfyUI's settings dialog. It shows the server's value, of which ComfyUI keeps no copy.

import { element } from '../elements.mjs'
import { t } from '../text.mjs'
import { changeSettings, readSettings } from './server.mjs'

const OWN_DEVICE = 'own' // the empty choice, by its name in the texts
const FRACTIONS = ['start_seconds', 'silence_seconds', 'log_megabytes']
const shown = new Map() // elements in the dialog, by the name of their setting
let isAsked = false

/** Makes the control of a setting. It is filled once the server has answered. */
export function makeControl(name) {
  const target = element('div', { class: 'paralleldit-setting', 'data-testid': `paralleldit-setting-${name}` })
  shown.set(name, target)
  if (!isAsked) refresh()
  return target
}

async function refresh() {
  isAsked = true
  const answer = await readSettings()
  isAsked = false
  if (answer) drawAll(answer)
}

/** Draws the controls of the open dialog by the server's answer. */
export function drawAll({ settings, cards }) {
  for (const setting of settings) {
    const target = shown.get(setting.name)
    const drawn = JSON.stringify([setting, cards])
    if (!target || target.dataset.drawn === drawn) continue
    target.dataset.drawn = drawn
    draw(target, setting, cards)
  }
}

function draw(target, setting, cards) {
  async function change(value) {
    const answer = await changeSettings({ [setting.name]: value })
    if (!answer) draw(target, setting, cards) // the old value comes back
  }
  const control = setting.name === 'gpus' ? makeCards(setting, cards, change) : makeInput(setting, change)
  control.setAttribute('aria-labelledby', `ParallelDiT.${setting.name}-label`)
  const focused = listFocusable(target).indexOf(document.activeElement)
  target.replaceChildren(control, ...makeNote(setting, cards, change))
  if (focused >= 0) (listFocusable(target)[focused] ?? listFocusable(target)[0])?.focus()
}

const listFocusable = (target) => [...target.querySelectorAll('input, select, button')]

/** Says why a setting cannot be changed here, or offers its default. */
function makeNote({ name, source, variable, is_open: isOpen }, cards, change) {
  if (!isOpen) return [element('small', {}, t(`settings.${source === 'variable' ? source : 'closed'}`, { variable }))]
  if (source === 'default') return name === 'gpus' && cards.length ? [element('small', {}, t('settings.open'))] : []
  const words = t(`settings.${name === 'gpus' ? 'automatic' : 'default'}`)
  const button = element('button', { type: 'button', 'data-testid': `paralleldit-default-${name}` }, words)
  button.addEventListener('click', () => change(null))
  return [button]
}

function makeInput(setting, change) {
  const { value, default: usual, choices, is_open: isOpen } = setting
  const input = choices ? makeChoice(setting) : element('input', describeInput(setting))
  const isAutomatic = usual === 0 && value === 0
  input.value = isAutomatic ? '' : Array.isArray(value) ? value.join(', ') : value
  input.disabled = !isOpen
  if (usual === 0) input.placeholder = t('settings.open')
  if (!choices) input.title = input.value // it may be cut off
  input.addEventListener('change', () => change(typeof value === 'number' ? readNumber(input) : input.value))
  return input
}

const describeInput = ({ name, value }) =>
  typeof value === 'number' ? { type: 'number', min: 0, step: FRACTIONS.includes(name) ? 'any' : 1 } : { type: 'text' }

/** Returns the number; null, which is the default, if the input is empty. */
const readNumber = (input) => (input.value === '' ? null : Number(input.value))

function makeChoice({ name, choices }) {
  const words = (choice) => t(`settings.ParallelDiT_${name}.options.${choice || OWN_DEVICE}`)
  return element('select', {}, ...choices.map((choice) => element('option', { value: choice }, words(choice))))
}

/** Makes a box for each GPU, ticked if it takes part. Without any tick, the choice is automatic. */
function makeCards({ is_open: isOpen }, cards, change) {
  const group = element('div', { class: 'paralleldit-cards', role: 'group' })
  if (!cards.length) group.append(t('settings.no_gpu'))
  for (const { index, words, is_used: isUsed } of cards) {
    const box = element('input', { type: 'checkbox', value: index })
    box.checked = isUsed
    box.disabled = !isOpen
    group.append(element('label', {}, box, words))
  }
  group.addEventListener('change', () => {
    const chosen = [...group.querySelectorAll(':checked')].map(({ value }) => Number(value))
    change(chosen.length ? chosen : null)
  })
  return group
}
